"""The Django integration, in separate processes: Django's settings can be set once in a process.

Starting Django takes seconds, so one process runs all checks of a database.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import django
import pytest

from conquiet.testing.discovery import available_mysql_flavours
from conquiet.testing.shared import SharedServers

Shop = tuple[str, "subprocess.CompletedProcess[str]"]
PROGRAM = Path(__file__).parent / "django_shop.py"
EVERYWHERE = ("request", "once")
CHECKS = {
    "sqlite": (*EVERYWHERE, "rollback", "task", "without_transaction", "ended_block", "batch"),
    "postgres": (*EVERYWHERE, "lost_connection", "hidden_error"),
    "mariadb": (*EVERYWHERE, "hidden_deadlock"),
}


def run(program: Path, url: str, *checks: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", program, *checks],
        env={**os.environ, "DJANGO_DB": url, "DJANGO_ALLOW_ASYNC_UNSAFE": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@contextmanager
def empty_database(kind: str, servers: SharedServers, folder: Path) -> Iterator[str]:
    """Yield the URL of a database that is dropped at the end."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'shop.db'}"
        return
    server = servers.postgres() if kind == "postgres" else servers.mysql(available_mysql_flavours()[0])
    name = f"conquiet_test_{uuid4().hex[:12]}"
    server.ensure_running()
    yield server.create_database(name)
    server.drop_database(name)


@pytest.fixture(scope="module")
def shop(
    request: pytest.FixtureRequest, conquiet_servers: SharedServers, tmp_path_factory: pytest.TempPathFactory
) -> Shop:
    """Return the database, and the process that ran the checks on it, one after the other."""
    kind: str = request.param
    with empty_database(kind, conquiet_servers, tmp_path_factory.mktemp("shop")) as url:
        return kind, run(PROGRAM, url, *CHECKS[kind])


def on(*kinds: str) -> pytest.MarkDecorator:
    """Run the test on the processes of these databases. Its process of pytest-xdist starts each of them once."""
    marked = [pytest.param(kind, marks=pytest.mark.xdist_group(f"django-{kind}")) for kind in kinds]
    return pytest.mark.parametrize("shop", marked, indirect=True)


def passed(name: str, shop: Shop) -> None:
    kind, done = shop
    assert name in done.stdout.splitlines(), done.stdout + done.stderr
    # The last check of a database is followed by the end of the process.
    assert name != CHECKS[kind][-1] or done.returncode == 0, done.stderr


@on(*CHECKS)
def test_a_message_is_published_if_its_request_commits(shop: Shop) -> None:
    passed("request", shop)


@on(*CHECKS)
def test_an_effect_by_the_orm_happens_once(shop: Shop) -> None:
    passed("once", shop)


@on("sqlite")
def test_a_handler_that_fails_leaves_nothing(shop: Shop) -> None:
    passed("rollback", shop)


@on("sqlite")
def test_a_task_is_enqueued_in_the_transaction(shop: Shop) -> None:
    passed("task", shop)


@on("sqlite")
def test_without_a_transaction_nothing_is_enqueued(shop: Shop) -> None:
    passed("without_transaction", shop)


@on("sqlite")
def test_after_its_block_a_transaction_enqueues_nothing(shop: Shop) -> None:
    """The row would be committed separately."""
    passed("ended_block", shop)


@on("sqlite")
def test_a_batch_handler_with_a_django_transaction_is_refused(shop: Shop) -> None:
    passed("batch", shop)


@on("postgres")
def test_a_lost_connection_is_not_the_messages_fault(shop: Shop) -> None:
    passed("lost_connection", shop)


@on("postgres")
def test_an_error_that_the_handler_hides_is_raised(shop: Shop) -> None:
    """COMMIT would roll back without an error, and the message would be acknowledged without its effect."""
    passed("hidden_error", shop)


@on("mariadb")
def test_a_deadlock_that_the_handler_hides_is_raised(shop: Shop) -> None:
    """COMMIT would keep the second half of the effect, without the inbox row."""
    passed("hidden_deadlock", shop)


def test_the_backend_for_django_6_enqueues_in_the_transaction(tmp_path: Path) -> None:
    """On Django 6, or on a stand-in for ``django.tasks``; its docstring states what that shows."""
    done = run(PROGRAM.with_name("django_six.py"), str(tmp_path / "shop.db"))

    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.skipif(django.VERSION >= (6,), reason="Django 6 has django.tasks")
def test_the_backend_on_django_5_says_what_to_use() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import conquiet.contrib.django.backend"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert "on Django 5.2 use 'from conquiet.contrib.django import task'" in done.stderr
