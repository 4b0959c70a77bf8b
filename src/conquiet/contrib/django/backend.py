"""A backend for ``django.tasks`` (Django 6): enqueues through the outbox, in the transaction of the request.

    BACKEND = "conquiet.contrib.django.backend.ConquietBackend"
    TASKS = {"default": {"BACKEND": BACKEND, "OPTIONS": {"app": "shop.jobs.app"}}}

The app runs them: call ``register_tasks(app)`` where its handlers are registered. A task has its effect in Django's
database once, because the inbox row of its message is in the same atomic block. Results are not stored.

Other backends send after the commit: a process that is killed in between loses the task. Here the task is a row of the
same transaction.
"""

from typing import Any, Final

from django.utils import timezone
from django.utils.module_loading import import_string

from conquiet.contrib.django.tasks import TASK_EVENT
from conquiet.contrib.django.transaction import emit
from conquiet.errors import ConfigurationError, MissingExtraError

try:
    from django.tasks import TaskResult, TaskResultStatus  # type: ignore[import-not-found,unused-ignore]
    from django.tasks.backends.base import BaseTaskBackend  # type: ignore[import-not-found,unused-ignore]
except ModuleNotFoundError as error:
    raise MissingExtraError(
        "django.tasks came with Django 6: on Django 5.2 use 'from conquiet.contrib.django import task', which has the "
        "same enqueue()",
        extra="django",
    ) from error

_OPTIONS: Final = frozenset({"app", "database"})


class ConquietBackend(BaseTaskBackend):  # type: ignore[misc,unused-ignore]
    """Write each task into the outbox of an ``App``.

    OPTIONS:
        app: Path of the App, ``"shop.jobs.app"``.
        database: Alias of the database; the task joins its transaction. ``"default"`` if left out.
    """

    supports_defer = True
    supports_async_task = False
    supports_get_result = False
    supports_priority = False

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = params.get("OPTIONS", {})
        if "app" not in options or set(options) - _OPTIONS:
            raise ConfigurationError(
                f'TASKS["{alias}"]["OPTIONS"] must have "app", the path of the App (such as "shop.jobs.app"), and may '
                'have "database"'
            )
        self._path: str = options["app"]
        self._database: str = options.get("database", "default")

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Write a task into the current atomic block. It is published if the block commits."""
        self.validate_task(task)
        app = import_string(self._path)
        payload = {"task": task.module_path, "args": list(args), "kwargs": dict(kwargs)}
        message_id = emit(app, TASK_EVENT, payload, at=task.run_after, using=self._database)
        return TaskResult(
            task=task,
            id=message_id,
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=payload["args"],
            kwargs=payload["kwargs"],
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
