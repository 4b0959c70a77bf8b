"""Django: messages and their effects in the transactions of Django's database connections.

    DjangoTransaction      the session of a handler that uses the ORM; emit in a request      transaction.py
    django_url             the database of Django's settings, for App(database=django_url)    database.py
    emit                   emit in the current atomic block                                   transaction.py
    task                   functions that are enqueued through the outbox; Django 5.2 has no  tasks.py
                           django.tasks
    ConquietBackend        a backend for django.tasks, for Django 6                           backend.py
    "conquiet.contrib.django" in INSTALLED_APPS creates the tables by "migrate"               migrations/

See docs/decisions/0042.
"""

from typing import TYPE_CHECKING

from conquiet.core.extras import require_extra
from conquiet.core.lazy_exports import lazy_exports

require_extra("django", "django")

if TYPE_CHECKING:
    from conquiet.contrib.django.database import django_url
    from conquiet.contrib.django.tasks import DjangoTask, register_tasks, task
    from conquiet.contrib.django.transaction import DjangoTransaction, emit

__all__ = ["DjangoTask", "DjangoTransaction", "django_url", "emit", "register_tasks", "task"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        ".database": ("django_url",),
        ".tasks": ("DjangoTask", "register_tasks", "task"),
        ".transaction": ("DjangoTransaction", "emit"),
    },
)
