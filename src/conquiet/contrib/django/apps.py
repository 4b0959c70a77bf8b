"""The Django application ``conquiet.contrib.django``: it has migrations and a command, and no models."""

from django.apps import AppConfig


class ConquietConfig(AppConfig):  # type: ignore[misc]
    """Creates the tables of inbox and outbox by ``migrate``."""

    name = "conquiet.contrib.django"
    label = "conquiet"
    verbose_name = "conquiet"
