"""Create the tables of inbox and outbox, with the statements of ``conquiet db init``."""

from typing import Any, ClassVar

from django.db import migrations

from conquiet.transactional.schema import INBOX_TABLE, OUTBOX_TABLE, statements


def create(_apps: Any, schema_editor: Any) -> None:
    """Create the tables unless they exist."""
    for statement in statements(schema_editor.connection.vendor, inbox=INBOX_TABLE, outbox=OUTBOX_TABLE):
        schema_editor.execute(statement, None)


def drop(_apps: Any, schema_editor: Any) -> None:
    """Drop both tables with their rows."""
    for table in (INBOX_TABLE, OUTBOX_TABLE):
        schema_editor.execute(f"DROP TABLE IF EXISTS {schema_editor.quote_name(table)}")


class Migration(migrations.Migration):  # type: ignore[misc]
    """The first version of both tables."""

    initial = True
    atomic = False  # MySQL cannot roll a CREATE TABLE back; IF NOT EXISTS makes a second try safe
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [migrations.RunPython(create, drop)]
