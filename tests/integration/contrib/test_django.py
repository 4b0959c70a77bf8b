"""The Django integration, in separate processes: Django's settings can be set once in a process."""

import os
import subprocess
import sys
from pathlib import Path

import django
import pytest

PROGRAM = Path(__file__).parent / "django_shop.py"


def check(name: str, url: str, program: Path = PROGRAM) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", program, name],
        env={**os.environ, "DJANGO_DB": url, "DJANGO_ALLOW_ASYNC_UNSAFE": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    found: str = request.getfixturevalue({"postgres": "postgres_url", "mariadb": "mariadb_url"}[request.param])
    return found


def test_a_message_is_published_if_its_request_commits(url: str) -> None:
    check("request", url)


def test_an_effect_by_the_orm_happens_once(url: str) -> None:
    check("once", url)


def test_a_handler_that_fails_leaves_nothing(tmp_path: Path) -> None:
    check("rollback", f"sqlite:///{tmp_path / 'shop.db'}")


def test_a_task_is_enqueued_in_the_transaction(tmp_path: Path) -> None:
    check("task", f"sqlite:///{tmp_path / 'shop.db'}")


def test_without_a_transaction_nothing_is_enqueued(tmp_path: Path) -> None:
    check("without_transaction", f"sqlite:///{tmp_path / 'shop.db'}")


def test_a_lost_connection_is_not_the_messages_fault(postgres_url: str) -> None:
    check("lost_connection", postgres_url)


def test_the_backend_for_django_6_enqueues_in_the_transaction(tmp_path: Path) -> None:
    """On Django 6, or on a stand-in for ``django.tasks``; its docstring states what that shows."""
    check("tasks", str(tmp_path / "shop.db"), PROGRAM.with_name("django_six.py"))


@pytest.mark.skipif(django.VERSION >= (6,), reason="Django 6 has django.tasks")
def test_the_backend_on_django_5_says_what_to_use() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import conquiet.contrib.django.backend"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert "on Django 5.2 use 'from conquiet.contrib.django import task'" in done.stderr
