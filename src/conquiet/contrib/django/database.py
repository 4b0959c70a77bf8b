"""The database of Django's settings as a URL, for the relay and for ``conquiet db init``."""

from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, connections
from sqlalchemy import URL

from conquiet.errors import ConfigurationError

_DRIVERS: Final = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "sqlite": "sqlite"}


def django_url(alias: str = DEFAULT_DB_ALIAS) -> URL:
    """Return the URL of one of Django's databases: ``App("shop", database=django_url)``.

    Given to ``App`` as a function, it is called when an engine is made, so that Django's test database is found.

    Raises:
        ConfigurationError: conquiet does not support the database, or it is in memory.
    """
    connection = connections[alias]
    settings: dict[str, Any] = connection.settings_dict
    drivername = _DRIVERS.get(connection.vendor)
    if drivername is None:
        raise ConfigurationError(
            f"Django's database {alias!r} is a {connection.vendor}: conquiet works on PostgreSQL, MySQL, MariaDB and "
            "SQLite"
        )
    name = str(settings["NAME"])
    if connection.vendor == "sqlite" and ("mode=memory" in name or name == ":memory:"):
        raise ConfigurationError(
            f"Django's database {alias!r} is in memory, where the relay cannot read it: name a file, for tests in "
            'DATABASES["default"]["TEST"] = {"NAME": BASE_DIR / "test.sqlite3"}'
        )
    return URL.create(
        drivername,
        username=settings.get("USER") or None,
        password=settings.get("PASSWORD") or None,
        host=settings.get("HOST") or None,
        port=int(settings["PORT"]) if settings.get("PORT") else None,
        database=name,
    )
