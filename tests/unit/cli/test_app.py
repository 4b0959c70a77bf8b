"""The commands and what each needs to be installed."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from conquiet.cli.app import app


def commands(group: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= commands(command, (*path, name))
        else:
            found[" ".join((*path, name))] = command
    return found


COMMANDS = commands(get_command(app))


def test_all_commands_are_there() -> None:
    assert set(COMMANDS) == {
        "dashboard",
        "db init", "db migrate", "db purge", "db status",
        "dead-letters causes", "dead-letters discard", "dead-letters list",
        "dead-letters replay", "dead-letters show", "demo", "dev", "doctor", "emit", "enqueue", "inspect", "new",
        "jobs bulk", "jobs cancel", "jobs edit", "jobs list", "jobs reschedule", "jobs reset", "jobs retry",
        "jobs run-now", "jobs show", "keys",
        "outbox list",
        "outbox parked", "outbox unpark", "pause", "pending",
        "publish", "rabbit run", "reclaim", "remove-consumer", "resume", "schedule list", "schedule next",
        "schedule pause", "schedule remove", "schedule resume", "trim", "worker",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_documents_its_exit_codes(name: str) -> None:
    assert "Exit codes: 0 " in (COMMANDS[name].help or "")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_in_the_handbook(name: str) -> None:
    handbook = Path(__file__).parents[3] / "docs" / "cli.md"

    assert f"conquiet {name}" in handbook.read_text(encoding="utf-8")


def test_importing_the_command_line_imports_no_client_library() -> None:
    """Slow imports happen in the command that needs them; this keeps the import of the command line under 300 ms."""
    heavy = ["redis", "sqlalchemy", "pika", "rich", "msgspec", "prometheus_client", "asyncio"]
    code = f"import sys, conquiet.cli.app; print([name for name in {heavy!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.strip() == "[]"


HIDING = "import sys; sys.modules.update(dict.fromkeys({hidden!r})); "


@pytest.mark.parametrize(
    ("hidden", "module"),
    [
        (["sqlalchemy", "pymysql", "pika", "cronsim", "starlette"], "conquiet.management"),
        (["redis", "sqlalchemy", "pymysql", "pika", "cronsim", "msgspec"], "conquiet.cli.app"),
    ],
)
def test_a_package_needs_no_more_than_its_extra(hidden: list[str], module: str) -> None:
    code = HIDING.format(hidden=hidden) + f"import {module}"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_whose_extra_is_missing_says_what_to_install() -> None:
    argv = ["conquiet", "inspect", "--redis-url", "redis://localhost"]
    code = HIDING.format(hidden=["redis"]) + f"from conquiet.cli import main; sys.argv = {argv!r}; main()"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 2
    assert done.stderr.startswith("conquiet: this part of conquiet needs redis")
    assert "pip install 'conquiet[redis]'" in done.stderr


def without(modules: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a Python where the modules cannot be imported, as where their extra is not installed."""
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({modules!r}))\n"
        f"sys.argv[1:] = {list(words)!r}\nfrom conquiet.cli import main\nmain()\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("modules", "words", "extra"),
    [
        (("typer",), ("--version",), "cli"),
        (("redis", "msgspec"), ("demo",), "redis"),
        (("redis", "msgspec"), ("dead-letters", "list", "orders", "--redis-url", "redis://127.0.0.1:1"), "redis"),
        (("sqlalchemy",), ("doctor", "--db-url", "mysql+pymysql://root@127.0.0.1:1/shop"), "mysql"),
    ],
)
def test_a_command_whose_extra_is_missing_says_which_one_to_install(
    modules: tuple[str, ...], words: tuple[str, ...], extra: str
) -> None:
    done = without(modules, *words)

    assert f"pip install 'conquiet[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


def test_the_doctor_of_a_database_needs_no_redis(tmp_path: Path) -> None:
    done = without(("redis", "hiredis", "pika"), "doctor", "--db-url", f"sqlite:///{tmp_path / 'shop.db'}")

    assert "the database is sqlite" in done.stdout
    assert done.returncode == 0


def test_the_dead_letters_of_rabbitmq_need_no_redis() -> None:
    done = without(
        ("redis", "hiredis"), "dead-letters", "list", "dead", "--rabbit", "--rabbit-url", "amqp://127.0.0.1:1/"
    )

    assert "RabbitMQ at amqp://127.0.0.1:1/ does not answer" in done.stderr
    assert done.returncode == 2


def test_a_usage_error_of_a_rabbit_consumer_is_exit_code_2() -> None:
    done = CliRunner().invoke(app, ["rabbit", "run", "http://broker", "orders", "json:loads"])

    assert "an AMQP URL starts with amqp://" in done.stderr
    assert done.exit_code == 2
