"""Check that the tables that the workers of an application need exist."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from conquiet.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import Connection


def require_tables(connection: "Connection", tables: Collection[str]) -> None:
    """Raise ``ConfigurationError`` if one of these tables does not exist."""
    from sqlalchemy import inspect

    from conquiet.db.engine_pool import database_address

    inspector = inspect(connection)
    missing = [table for table in sorted(tables) if not _has_table(inspector, table)]
    if missing:
        what = f"the table {missing[0]} does" if len(missing) == 1 else f"the tables {', '.join(missing)} do"
        raise ConfigurationError(
            f"{what} not exist in the app's database ({database_address(connection.engine)}): run "
            "'conquiet db init module:app' once, or call app.create_tables()"
        )


def _has_table(inspector: Any, table: str) -> bool:
    schema, _, name = table.rpartition(".")
    return bool(inspector.has_table(name, schema=schema or None))
