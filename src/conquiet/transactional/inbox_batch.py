"""Record many messages in one transaction and return which of them are new: one statement if all are.

    INSERT all keys ──┬─ all written ─────▶ all are new
                      └─ some exist ──────▶ read those; same digest, or none: duplicates
                                            another digest: ``InboxRows`` decides about each, as for a single message
                                            MySQL has written nothing then: INSERT the others

Rows are written in the order of their ids, so two transactions with messages in common wait for each other and do not
deadlock. A key that occurs twice in one batch is new once.

See docs/decisions/0024.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from conquiet.db.errors import is_duplicate
from conquiet.errors import ConflictError, DbWriteError
from conquiet.metrics.registry import INBOX_MESSAGES_TOTAL
from conquiet.metrics.safety import count
from conquiet.transactional.batch_sql import BatchStatements, batch_statements, bind_rows
from conquiet.transactional.effect_counts import count_effects
from conquiet.transactional.inbox_keys import InboxKey
from conquiet.transactional.payload_digest import is_same
from conquiet.transactional.schema import if_missing
from conquiet.transactional.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from conquiet.transactional.inbox_rows import InboxRows

MAX_ROWS: Final = 1_000
"""Maximum rows of one statement."""

_MAX_ROUNDS: Final = 3
"""Maximum inserts of one list: between the failed INSERT and the SELECT, a purge may delete the existing rows."""


_Rows = list[tuple[InboxKey, bytes | None]]
"""Keys and digests."""


class InboxEntry(NamedTuple):
    """A message to record."""

    key: InboxKey
    digest: bytes | None


def record_many(inbox: "InboxRows", unit: UnitOfWork, entries: Sequence[InboxEntry]) -> list[bool]:
    """Write the rows of these messages into the transaction; return for each whether it is the first time.

    Raises:
        MessageInProgressError: Another run of one of them did not end in time, or two runs waited for each other.
        LifecycleError: The same transaction has recorded one of them before.
    """
    known: dict[InboxKey, bytes | None] = {}
    for key, digest in entries:
        known.setdefault(key, digest)
    existing = _write(inbox, unit, known)
    if existing or len(known) < len(entries):
        first_time, counts = _decided(inbox, unit, entries, known, existing)
    else:  # nearly always
        first_time, counts = [True] * len(entries), {"first": len(entries), "duplicate": 0}
    if entries:
        source = entries[0].key.source
        if counts["first"]:
            count_effects(unit, source, "first", counts["first"])
        count(INBOX_MESSAGES_TOTAL, source, "duplicate", n=counts["duplicate"])
    return first_time


def _decided(
    inbox: "InboxRows",
    unit: UnitOfWork,
    entries: Sequence[InboxEntry],
    known: dict[InboxKey, bytes | None],
    existing: "dict[InboxKey, tuple[Any]]",
) -> tuple[list[bool], dict[str, int]]:
    """Return for each message whether it is the first time, and the number of each outcome that is decided here.

    A key that came before in ``entries`` is compared with the digest of its first message, in ``known``.
    """
    first_time: list[bool] = []
    counts = {"first": 0, "duplicate": 0}
    seen: dict[InboxKey, set[bytes | None]] = {}
    for key, digest in entries:
        digests = seen.setdefault(key, set())
        there = (known[key],) if digests else existing.get(key)
        if there is None:
            counts["first"] += 1
            first_time.append(True)
        elif digest is None or digest in digests or is_same(there[0], digest):
            counts["duplicate"] += 1
            first_time.append(False)
        else:
            # Another message had this id before: rare, a clock was set back.
            first_time.append(inbox.record(unit, key, digest))
        digests.add(digest)
    return first_time, counts


def _write(inbox: "InboxRows", unit: UnitOfWork, entries: dict[InboxKey, bytes | None]) -> "dict[InboxKey, tuple[Any]]":
    """Write the missing rows; return the digests of the existing ones, each in a tuple."""
    existing: dict[InboxKey, tuple[Any]] = {}
    for rows in _chunks(entries):
        if len(rows) == 1 or batch_statements(unit.dialect, inbox.table) is None:
            existing |= {key: row for key, digest in rows if (row := inbox.write(unit, key, digest)) is not None}
        else:
            there = _Writer(inbox, unit).write(rows)
            inbox.record_written(unit, dict(rows), there)
            existing |= there
    return existing


def _chunks(entries: dict[InboxKey, bytes | None]) -> Iterator[_Rows]:
    """Yield the rows by source and group, in the order of their keys."""
    rows: _Rows = []
    for key in sorted(entries):
        item = (key, entries[key])
        if rows and (rows[0][0][:2] != item[0][:2] or len(rows) == MAX_ROWS):
            yield rows
            rows = []
        rows.append(item)
    if rows:
        yield rows


class _Writer:
    """Writes rows of one source and group."""

    def __init__(self, inbox: "InboxRows", unit: UnitOfWork) -> None:
        self._inbox = inbox
        self._unit = unit

    def write(self, rows: _Rows) -> "dict[InboxKey, tuple[Any]]":
        """Write the missing rows; return the digests of the existing ones."""
        existing: dict[InboxKey, tuple[Any]] = {}
        left = rows
        for _ in range(_MAX_ROUNDS):
            unwritten, error = self._insert(left)
            if not unwritten:
                return existing
            found = self._find(unwritten)
            if not found and error is not None:  # for example the duplicate of a user's trigger
                raise if_missing(error, self._inbox.table) from error.__cause__
            existing |= found
            left = [row for row in unwritten if row[0] not in found]
            if not left:
                return existing
        raise self._inbox.row_vanished()

    def _insert(self, rows: _Rows) -> "tuple[_Rows, DbWriteError | None]":
        """Insert; return the rows that were not written, and the error: MySQL then writes none."""

        def run(with_digest: bool) -> _Rows:  # noqa: FBT001 - see ``on_any_version``
            has_digests = any(digest for _, digest in rows)
            statements, binds = self._statements(with_digest and has_digests), self._binds(rows)
            if not statements.reports_written:
                self._unit.execute(statements.insert, binds)
                return []
            written = self._unit.insert_many(statements.insert, {**binds, "number": len(rows)})
            return [] if written is None else [row for row in rows if row[0].id.encode() not in written]

        try:
            return self._inbox.on_any_version(self._unit, run), None
        except ConflictError as error:
            raise self._inbox.in_progress(error, rows[0][0].source) from error.__cause__
        except DbWriteError as error:
            if not is_duplicate(error):
                raise if_missing(error, self._inbox.table) from error.__cause__
            return rows, error

    def _find(self, rows: _Rows) -> "dict[InboxKey, tuple[Any]]":
        keys = {key.id.encode(): key for key, _ in rows}
        found = self._inbox.on_any_version(
            self._unit, lambda digest: self._unit.fetch_all(self._statements(digest).find, self._binds(rows))
        )
        return {
            keys[bytes(row["id"])]: (None if row["digest"] is None else bytes(row["digest"]),)
            for row in found
            if bytes(row["id"]) in keys
        }

    def _statements(self, with_digest: bool) -> BatchStatements:  # noqa: FBT001 - see ``on_any_version``
        statements = batch_statements(self._unit.dialect, self._inbox.table, digest=with_digest)
        assert statements is not None  # noqa: S101 - checked by the caller
        return statements

    def _binds(self, rows: _Rows) -> dict[str, Any]:
        dialect, key = self._unit.dialect, rows[0][0]
        bound = bind_rows(dialect, [row[0].id.encode() for row in rows], [digest for _, digest in rows])
        return {
            "source": dialect.bind_binary(key.source.encode()),
            "grp": dialect.bind_binary(key.group.encode()),
            **bound,
        }
