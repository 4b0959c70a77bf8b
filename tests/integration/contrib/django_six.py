"""``ConquietBackend``: on Django 6 itself where this Python has it, otherwise on a stand-in for ``django.tasks``.

The stand-in has the names and the constructor that the backend uses, and no more: it shows that the backend writes into
the transaction and that the worker runs the task once. It does not show that Django 6 accepts the backend; the run on a
newer Python does (``scripts/matrix_pythons.sh``).
"""

import asyncio
import importlib.util
import os
import sys
import types
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from typing import Any

import django
from django.conf import settings

HAS_TASKS = importlib.util.find_spec("django.tasks") is not None


class TaskResultStatus(Enum):
    """States of a result."""

    READY = "READY"


@dataclass
class TaskResult:
    """The result of ``enqueue``."""

    task: Any
    id: str
    status: TaskResultStatus
    enqueued_at: Any
    started_at: Any
    finished_at: Any
    last_attempted_at: Any
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    errors: list[Any] = field(default_factory=list)
    worker_ids: list[str] = field(default_factory=list)


class BaseTaskBackend:
    """The base class of backends."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        self.alias = alias

    def validate_task(self, task: Any) -> None:
        """Accept every task."""


@dataclass(frozen=True)
class Task:
    """A function with the attributes that a backend reads."""

    func: Any
    run_after: Any = None

    @property
    def module_path(self) -> str:
        """The place of the task."""
        return f"shop_tasks.{self.func.__name__}"

    def using(self, *, run_after: Any) -> "Task":
        """Return the task with a due time."""
        return replace(self, run_after=run_after)

    def enqueue(self, *args: Any) -> Any:
        """Enqueue it in the backend."""
        return backend.enqueue(self, args, {})


MEMBERS: dict[str, dict[str, Any]] = {
    "django.tasks": {"TaskResult": TaskResult, "TaskResultStatus": TaskResultStatus, "task": Task},
    "django.tasks.backends": {},
    "django.tasks.backends.base": {"BaseTaskBackend": BaseTaskBackend},
}
for name, members in {} if HAS_TASKS else MEMBERS.items():
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module

OPTIONS = {"app": "shop_tasks.app"}
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["DJANGO_DB"]}},
    INSTALLED_APPS=["conquiet.contrib.django"],
    TASKS={"default": {"BACKEND": "conquiet.contrib.django.backend.ConquietBackend", "OPTIONS": OPTIONS}},
    USE_TZ=True,
)
django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.tasks import task  # type: ignore[import-not-found,unused-ignore]  # noqa: E402
from django.utils import timezone  # noqa: E402

from conquiet import App  # noqa: E402
from conquiet.app import TestApp  # noqa: E402
from conquiet.contrib.django import django_url, register_tasks  # noqa: E402
from conquiet.contrib.django.backend import ConquietBackend  # noqa: E402

app = App("shop", redis="redis://127.0.0.1:1/0", database=django_url)
register_tasks(app)


def remind(order_id: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO reminder VALUES (%s)", [order_id])


remind.__module__ = "shop_tasks"
shop_tasks = types.ModuleType("shop_tasks")
shop_tasks.app = app  # type: ignore[attr-defined]
sys.modules["shop_tasks"] = shop_tasks
shop_tasks.remind = task(remind)  # type: ignore[attr-defined]
backend = ConquietBackend("default", {"OPTIONS": OPTIONS})  # of the stand-in; Django 6 makes its own


def reminders() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT order_id FROM reminder ORDER BY order_id")
        return [row[0] for row in cursor.fetchall()]


async def in_memory() -> None:
    """Run what was enqueued before; let an hour pass."""
    async with TestApp(app) as t:
        assert await t.drain() == 1
        assert await asyncio.to_thread(reminders) == ["kept"]
        t.clock.advance(3_500)
        assert await t.drain() == 0  # an hour has not passed
        t.clock.advance(200)
        assert await t.drain() == 1
    assert t.dead_letters == []


call_command("migrate", verbosity=0)
with connection.cursor() as first:
    first.execute("CREATE TABLE reminder (order_id TEXT)")
with transaction.atomic():
    result = shop_tasks.remind.enqueue("kept")
    shop_tasks.remind.using(run_after=timezone.now() + timedelta(hours=1)).enqueue("later")
try:
    with transaction.atomic():
        shop_tasks.remind.enqueue("rolled back")
        raise RuntimeError
except RuntimeError:
    pass
asyncio.run(in_memory())
assert reminders() == ["kept", "later"]
assert result.status.name == "READY"
assert result.id
sys.stdout.write("ok\n")
