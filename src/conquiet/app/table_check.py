"""Check that the tables exist which the workers of an application need."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from conquiet.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import Engine


def require_tables(engine: "Engine", tables: Collection[str]) -> None:
    """Raise ``ConfigurationError`` if one of these tables does not exist."""
    from sqlalchemy import inspect
    from sqlalchemy.exc import SQLAlchemyError

    from conquiet.db.engine_pool import database_address
    from conquiet.db.errors import OperationInfo, as_write_error

    try:
        with engine.connect() as connection:
            found = {table: _has_table(inspect(connection), table) for table in sorted(tables)}
    except SQLAlchemyError as error:
        info, server = OperationInfo("looking for the app's tables"), database_address(engine)
        raise as_write_error(error, info, connecting=True, server=server) from error
    missing = [table for table, exists in found.items() if not exists]
    if missing:
        raise ConfigurationError(
            f"the table {' and the table '.join(missing)} does not exist in the app's database: create it once "
            "with 'conquiet db init module:app' or app.create_tables()"
        )


def _has_table(inspector: Any, table: str) -> bool:
    schema, _, name = table.rpartition(".")
    return bool(inspector.has_table(name, schema=schema or None))
