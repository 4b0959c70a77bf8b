"""Functions that are enqueued through the outbox, with the interface of ``django.tasks``, on Django 5.2 and newer.

    @task(app)
    def book(order_id: str, cents: int) -> None:
        Booking.objects.create(order_id=order_id, cents=cents)

    with transaction.atomic():
        order.save()
        book.enqueue(order.id, 500)          # in this transaction; runs once in a worker, if it commits

Each task is an event of the app, named after the function, and has the retries, dead letters and schedules of ``App``.
Arguments must be JSON. On Django 6 ``backend.ConquietBackend`` serves ``django.tasks`` itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec

from django.db import DEFAULT_DB_ALIAS
from django.utils.module_loading import import_string

from conquiet.contrib.django.transaction import DjangoTransaction, emit
from conquiet.core.functions import is_coroutine_function
from conquiet.errors import ConfigurationError

if TYPE_CHECKING:
    from conquiet.app.application import App
    from conquiet.processor.policy import RetryPolicy

P = ParamSpec("P")

TASK_EVENT: Final = "django.task"
"""The event of tasks that ``django.tasks`` enqueues; see ``register_tasks``."""


@dataclass(frozen=True, slots=True)
class DjangoTask(Generic[P]):
    """A function that can be enqueued. A call runs it immediately.

    Attributes:
        app: Its application.
        func: The function.
        event: The event that carries its arguments.
        run_after: Its due time; None is now.
        alias: The database; the task is enqueued in its transaction.
    """

    app: "App"
    func: Callable[P, object]
    event: str
    run_after: datetime | None = None
    alias: str = field(default=DEFAULT_DB_ALIAS)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> object:
        """Run the function now."""
        return self.func(*args, **kwargs)

    def using(self, *, run_after: datetime | None = None, database: str | None = None) -> "DjangoTask[P]":
        """Return the task with another due time, or for the transaction of another database."""
        return replace(self, run_after=run_after, alias=self.alias if database is None else database)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Enqueue the function in the current atomic block and return the id of its message.

        Raises:
            ConfigurationError: No atomic block is open.
            PayloadError: An argument is not JSON.
        """
        payload = {"args": list(args), "kwargs": dict(kwargs)}
        return emit(self.app, self.event, payload, at=self.run_after, using=self.alias)


def task(
    app: "App",
    *,
    name: str | None = None,
    retry: "RetryPolicy | None" = None,
    timeout_s: float | None = None,
    once: bool = True,
) -> Callable[[Callable[P, object]], DjangoTask[P]]:
    """Make the decorated function a task of ``app``; its effect in Django's database happens once.

    Args:
        app: The application.
        name: Name of its event; the function's module and name if left out. Waiting messages carry it.
        retry: As for ``App.handler``.
        timeout_s: As for ``App.handler``.
        once: As for ``App.handler``.

    Raises:
        ConfigurationError: It is ``async def``, or another task has its name.
    """

    def register(function: Callable[P, object]) -> DjangoTask[P]:
        if is_coroutine_function(function):
            raise ConfigurationError(
                f"task {function.__qualname__} must be a plain function, not 'async def': Django has no transactions "
                "for coroutines"
            )
        event = f"{function.__module__}.{function.__qualname__}" if name is None else name

        def run(payload: dict[str, Any], session: DjangoTransaction) -> None:  # noqa: ARG001 - the transaction is open
            function(*payload["args"], **payload["kwargs"])

        app.handler(event, retry=retry, timeout_s=timeout_s, once=once)(run)
        return DjangoTask(app, function, event)

    return register


def register_tasks(
    app: "App", *, retry: "RetryPolicy | None" = None, timeout_s: float | None = None, once: bool = True
) -> None:
    """Run the tasks that ``django.tasks`` enqueues with ``ConquietBackend`` in the workers of ``app``."""

    def run(payload: dict[str, Any], session: DjangoTransaction) -> None:  # noqa: ARG001 - the transaction is open
        run_task(payload)

    app.handler(TASK_EVENT, retry=retry, timeout_s=timeout_s, once=once)(run)


def run_task(payload: Mapping[str, Any]) -> object:
    """Run the task that a message names."""
    found = import_string(payload["task"])
    function = getattr(found, "func", found)
    return function(*payload["args"], **payload["kwargs"])
