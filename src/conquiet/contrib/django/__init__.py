"""Django: messages and their effects in the transactions of Django's database connections.

    DjangoTransaction      the session of a handler that uses the ORM; emit in a request      transaction.py
    django_url             the database of Django's settings, for App(database=django_url)    database.py
    emit                   emit in the current atomic block                                   transaction.py
    task                   functions that are enqueued through the outbox; Django 5.2 has no  tasks.py
                           django.tasks
    ConquietBackend        a backend for django.tasks, for Django 6                           backend.py
    "conquiet.contrib.django" in INSTALLED_APPS creates the tables by "migrate"               migrations/

See docs/decisions/0024.
"""

from conquiet.core.extras import require_extra
from conquiet.core.lazy_exports import lazy_exports, stub_exports

require_extra("django", "django")

_HOMES = stub_exports(__name__)
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
