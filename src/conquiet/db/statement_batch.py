"""Group operations into statements. Pure. See docs/decisions/0007.

Rows of one shape are stored by column, so that the checks run in a few loops of the interpreter (``map``, set
building). Row by row the same checks cost ten times as much, which is half of the driver's work.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice, repeat
from operator import itemgetter
from typing import Any, Final, Self

from conquiet.db.models import DbOperation, DbOperationType

# Past some hundred rows a statement gains little, and all of it waits for its slowest part.
MAX_ROWS: Final = 1_000
# A quarter of the smallest max_allowed_packet in use (4 MiB), values only, estimated.
MAX_BYTES: Final = 1_048_576
_SMALL: Final = 24
_SMALL_TYPES: Final = frozenset({int, float, bool, type(None), Decimal, date, datetime, time, timedelta})
_SIZED: Final = (str, bytes, bytearray)


@dataclass(frozen=True, slots=True)
class Rows:
    """At least two INSERTs into one table with the same columns, for one statement.

    Attributes:
        ops: The operations, in order.
        columns: The columns that they write.
        values: For each column the values of all rows.
    """

    ops: Sequence[DbOperation]
    columns: tuple[str, ...]
    values: Sequence[list[Any]]

    def __repr__(self) -> str:
        return f"Rows({len(self.ops)} of {self.table})"

    @classmethod
    def of(cls, ops: Sequence[DbOperation]) -> Self:
        """Store operations of one shape by column."""
        columns = tuple(ops[0].payload)
        return cls(ops, columns, _by_column([op.payload for op in ops], columns))

    @property
    def table(self) -> str:
        """The table of all rows."""
        return self.ops[0].table

    def column(self, name: str | None) -> list[Any] | None:
        """Return the values of one column, or None if there is none."""
        return None if name is None else self.values[self.columns.index(name)]

    def placeholders(self) -> str:
        """Return ``(%s, %s), (%s, %s)`` and so on, to follow VALUES if ``flatten()`` is bound."""
        return ", ".join([self._row] * len(self.ops))

    def flatten(self) -> list[Any]:
        """Return all values, row after row."""
        return _interleaved(self.values)

    def inline_integers(self) -> tuple[str, list[Any]]:
        """Return the text after VALUES with columns of plain integers as digits, and the values left to bind.

        Half of a driver's time for a batch is finding out the type of each value and how to escape it. Integers need
        no escaping: 3.0 µs per row against 3.9 µs with every value bound (docs/decisions/0007).
        """
        texts: list[Iterable[str]] = []
        bound: list[list[Any]] = []
        for values in self.values:
            if {*map(type, values)} == {int}:  # exactly int: a bool or an enum's member is written differently
                texts.append(map(str, values))
            else:
                texts.append(repeat("%s", len(values)))
                bound.append(values)
        return ", ".join(map(self._row.__mod__, zip(*texts, strict=True))), _interleaved(bound)

    @property
    def _row(self) -> str:
        return "(" + ", ".join(["%s"] * len(self.columns)) + ")"


def group_operations(ops: Iterable[DbOperation]) -> Iterator[DbOperation | Rows]:
    """Split operations, in order, into what one statement can carry; an UPDATE is always alone."""
    source = iter(ops)
    while chunk := list(islice(source, MAX_ROWS)):
        together = _as_one_group(chunk)
        if together is not None:
            yield together
        else:
            for group in _split(chunk):
                yield group[0] if len(group) == 1 else Rows.of(group)


def _as_one_group(ops: Sequence[DbOperation]) -> Rows | None:
    """Return all of them as one group, as most batches are; None if they differ in shape or are too large."""
    if len(ops) == 1:
        return None
    insert, table, columns = DbOperationType.INSERT, ops[0].table, tuple(ops[0].payload)
    if [op for op in ops if op.op_type is not insert or op.table != table]:
        return None
    payloads = [op.payload for op in ops]
    # As many keys as the first one and none of its keys missing: the same keys. Only for a plain dict, since another
    # mapping may return a value for a key that it does not have (defaultdict).
    if {*map(type, payloads)} != {dict} or {*map(len, payloads)} != {len(columns)}:
        return None
    try:
        values = _by_column(payloads, columns)
    except KeyError:
        return None
    return Rows(ops, columns, values) if sum(map(_size, values)) <= MAX_BYTES else None


def _by_column(payloads: Sequence[Mapping[str, Any]], columns: tuple[str, ...]) -> list[list[Any]]:
    return [list(map(itemgetter(column), payloads)) for column in columns]


def _interleaved(columns: Sequence[list[Any]]) -> list[Any]:
    width = len(columns)
    flat: list[Any] = [None] * sum(map(len, columns))
    for number, values in enumerate(columns):
        flat[number::width] = values
    return flat


def _split(ops: Iterable[DbOperation]) -> Iterator[list[DbOperation]]:
    group: list[DbOperation] = []
    size = 0
    for op in ops:
        own_size = _size(op.payload.values())
        if group and not (_same_shape(group[0], op) and size + own_size <= MAX_BYTES):
            yield group
            group, size = [], 0
        group.append(op)
        size += own_size
    if group:
        yield group


def _same_shape(one: DbOperation, other: DbOperation) -> bool:
    insert = DbOperationType.INSERT
    return (
        one.op_type is insert
        and other.op_type is insert
        and one.table == other.table
        and one.payload.keys() == other.payload.keys()
    )


def _size(values: Collection[Any]) -> int:
    """Estimate how many bytes of a statement the values take."""
    kinds = {*map(type, values)}
    if kinds <= _SMALL_TYPES:
        return _SMALL * len(values)
    if kinds == {str}:
        return sum(map(len, values))
    return sum([len(value) if isinstance(value, _SIZED) else _SMALL for value in values])
