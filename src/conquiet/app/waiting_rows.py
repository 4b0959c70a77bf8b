"""Convert the delays of rows that wait in the outbox when a ``TestApp`` starts to delays of its clock.

A test may emit before it starts the ``TestApp``, as a test client of a web framework does. Such a row has a due time by
the database's clock, which no test can advance.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sqlalchemy import Engine

_US_PER_S: Final = 1_000_000


def make_due_now(engine: "Engine", table: str, streams: Collection[str]) -> dict[str, float]:
    """Make delayed rows of these streams due now; return the remaining seconds by message id."""
    from sqlalchemy import bindparam, text

    from conquiet.transactional.sql_dialect import dialect_named

    dialect = dialect_named(engine.dialect.name)
    name = dialect.quote(table)
    since_due_us = dialect.age_us.replace("created_at", "due_at")
    delayed = text(
        f"SELECT seq, message_id AS id, target, {since_due_us} AS age FROM {name} "  # noqa: S608 - a validated name
        f"WHERE parked = 0 AND due_at > {dialect.now}"
    )
    due = text(f"UPDATE {name} SET due_at = {dialect.now} WHERE seq IN :seqs")  # noqa: S608 - a validated name
    targets = {stream.encode() for stream in streams}
    with engine.begin() as connection:
        rows = [row for row in connection.execute(delayed).mappings() if bytes(row["target"]) in targets]
        if rows:
            seqs = [row["seq"] for row in rows]
            connection.execute(due.bindparams(bindparam("seqs", expanding=True)), {"seqs": seqs})
    return {bytes(row["id"]).decode(): -float(row["age"]) / _US_PER_S for row in rows}
