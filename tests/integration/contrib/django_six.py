"""``ConquietBackend`` on a stand-in for ``django.tasks`` of Django 6, which this Python may not have.

The stand-in has the names and the constructor that the backend uses, and no more: it shows that the backend writes into
the transaction and that the worker runs the task once. It does not show that Django 6 accepts the backend.
"""

import asyncio
import os
import sys
import types
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import django
from django.conf import settings


class TaskResultStatus(Enum):
    """States of a result."""

    READY = "READY"


@dataclass
class TaskResult:
    """What ``enqueue`` returns."""

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


@dataclass
class Task:
    """A function with the attributes that a backend reads."""

    func: Any
    run_after: Any = None

    @property
    def module_path(self) -> str:
        """Where the task is found."""
        return f"shop_tasks.{self.func.__name__}"


MEMBERS: dict[str, dict[str, Any]] = {
    "django.tasks": {"TaskResult": TaskResult, "TaskResultStatus": TaskResultStatus},
    "django.tasks.backends": {},
    "django.tasks.backends.base": {"BaseTaskBackend": BaseTaskBackend},
}
for name, members in MEMBERS.items():
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules.setdefault(name, module)

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["DJANGO_DB"]}},
    INSTALLED_APPS=["conquiet.contrib.django"],
    USE_TZ=True,
)
django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection, transaction  # noqa: E402

from conquiet import App  # noqa: E402
from conquiet.app import TestApp  # noqa: E402
from conquiet.contrib.django import django_url, register_tasks  # noqa: E402
from conquiet.contrib.django.backend import ConquietBackend  # noqa: E402

app = App("shop", redis="redis://127.0.0.1:1/0", database=django_url)
register_tasks(app)


def remind(order_id: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO reminder VALUES (%s)", [order_id])


shop_tasks = types.ModuleType("shop_tasks")
shop_tasks.remind = Task(remind)  # type: ignore[attr-defined]
shop_tasks.app = app  # type: ignore[attr-defined]
sys.modules["shop_tasks"] = shop_tasks


async def drain() -> None:
    async with TestApp(app) as t:
        await t.drain()
    assert t.dead_letters == []


call_command("migrate", verbosity=0)
with connection.cursor() as first:
    first.execute("CREATE TABLE reminder (order_id TEXT)")
backend = ConquietBackend("default", {"OPTIONS": {"app": "shop_tasks.app"}})
with transaction.atomic():
    result = backend.enqueue(shop_tasks.remind, ("kept",), {})
try:
    with transaction.atomic():
        backend.enqueue(shop_tasks.remind, ("rolled back",), {})
        raise RuntimeError
except RuntimeError:
    pass
asyncio.run(drain())
with connection.cursor() as last:
    last.execute("SELECT order_id FROM reminder")
    assert last.fetchall() == [("kept",)]
assert result.status is TaskResultStatus.READY
assert result.id
sys.stdout.write("ok\n")
