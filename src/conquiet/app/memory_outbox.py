"""The outbox of ``TestApp``: rows of the app's database, published in memory at the time of the test's clock."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, text

from conquiet.processor.envelope import Envelope
from conquiet.transactional.outbox import Outbox, OutboxRows
from conquiet.transactional.payload import decode
from conquiet.transactional.sql_dialect import dialect_named
from conquiet.transactional.targets import PUBLISHED

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from conquiet.app.memory_broker import MemoryBroker, TestClock
    from conquiet.transactional.relay_decisions import OutboxMessage
    from conquiet.transactional.targets import Results

_MS = 1_000
_US_PER_S = 1_000_000


class MemoryTarget:
    """The target of the relay for one stream."""

    def __init__(self, broker: "MemoryBroker", clock: "TestClock", stream: str) -> None:
        self._broker = broker
        self._clock = clock
        self._stream = stream

    def publish(self, messages: Sequence["OutboxMessage"]) -> "Results":
        """See ``Target.publish``."""
        for message in messages:
            delay_ms = round(self._broker.delays_s.pop(message.message_id, 0.0) * _MS)
            envelope = Envelope(event=message.event or "", id=message.message_id, data=decode(message.payload))
            envelope.key = None if message.key is None else message.key.decode()
            envelope.headers = message.headers
            self._broker.publish_at(self._clock.now_ms + delay_ms, self._stream, envelope)
        return [PUBLISHED for _ in messages]


class ClockedOutbox(Outbox):
    """The app's outbox, with delays by the test's clock and not by the database's.

    Args:
        table: Name of its table.
        broker: Keeps the delays until the rows are published.
    """

    def __init__(self, table: str, broker: "MemoryBroker") -> None:
        super().__init__(table)
        self._broker = broker

    def _rows(
        self, target: str, payloads: Any, keys: Any, event: str | None, delay_s: float | None, headers: Any
    ) -> OutboxRows:
        """See ``Outbox._rows``."""
        rows = super()._rows(target, payloads, keys, event, None, headers)
        self._broker.outbox_used = True
        if delay_s:
            self._broker.delays_s |= dict.fromkeys(rows.ids, delay_s)
        return rows


def make_due_now(engine: "Engine", table: str, streams: Collection[str]) -> dict[str, float]:
    """Make delayed rows of these streams due now; return the remaining seconds by message id.

    A test may emit before it starts the ``TestApp``, as a test client of a web framework does. Such a row has a due
    time by the database's clock, which no test can advance.
    """
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
