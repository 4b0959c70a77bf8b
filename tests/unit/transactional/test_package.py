"""The package needs the extra of the database and of no broker: a broker's target imports its own."""

import subprocess
import sys


def run_hiding(*modules: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run code where the given modules cannot be imported, as if their extra were not installed."""
    # None in sys.modules makes Python refuse the import of the module.
    program = f"import sys\nsys.modules.update(dict.fromkeys({modules!r}))\n{code}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_inbox_and_outbox_work_without_any_broker_installed() -> None:
    done = run_hiding(
        "redis",
        "pika",
        code=(
            "from sqlalchemy import create_engine\n"
            "from sqlalchemy.pool import StaticPool\n"
            "from conquiet import DbSession, Inbox, Outbox\n"
            "from conquiet.transactional import InboxKey, create_tables\n"
            "engine = create_engine('sqlite://', poolclass=StaticPool)\n"
            "create_tables(engine)\n"
            "with DbSession(engine) as session:\n"
            "    assert Inbox().record(session, InboxKey('s', 'g', '1'))\n"
            "    Outbox().add(session, 't', {'a': 1})\n"
            "print('fine')\n"
        ),
    )

    assert done.stdout == "fine\n", done.stderr


def test_the_queue_and_rabbit_do_not_know_the_bridge() -> None:
    done = run_hiding(
        "sqlalchemy", code="import conquiet.queue, conquiet.rabbit, sys\nprint('conquiet.transactional' in sys.modules)"
    )

    assert done.stdout == "False\n", done.stderr


def test_a_missing_database_extra_says_what_to_install() -> None:
    done = run_hiding("sqlalchemy", code="import conquiet.transactional")

    assert "conquiet[mysql]" in done.stderr


def test_a_missing_rabbit_extra_is_missed_only_by_who_publishes_there() -> None:
    done = run_hiding(
        "pika", code="import conquiet.transactional\nprint('so far')\nfrom conquiet.transactional import ToRabbit"
    )

    assert done.stdout == "so far\n"
    assert "conquiet[rabbit]" in done.stderr


def test_the_function_metadata_is_not_hidden_by_its_module() -> None:
    code = (
        "import conquiet.transactional.migrations\n"
        "from conquiet.transactional import metadata\n"
        "print(callable(metadata))"
    )

    assert run_hiding("pika", code=code).stdout == "True\n"
