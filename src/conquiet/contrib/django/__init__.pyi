# The public names of the package; ``__init__.py`` reads this file. See ``conquiet.core.lazy_exports``.

from conquiet.contrib.django.database import django_url as django_url
from conquiet.contrib.django.tasks import DjangoTask as DjangoTask
from conquiet.contrib.django.tasks import register_tasks as register_tasks
from conquiet.contrib.django.tasks import task as task
from conquiet.contrib.django.transaction import DjangoTransaction as DjangoTransaction
from conquiet.contrib.django.transaction import emit as emit
