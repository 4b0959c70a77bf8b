"""Which operations travel together. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from conquiet.db.models import DbOperation, DbOperationType

# Past some hundred rows a statement gains little, and all of it waits for its slowest part.
MAX_ROWS: Final = 1_000
# A quarter of the smallest max_allowed_packet in use (4 MiB), values only, estimated.
MAX_BYTES: Final = 1_048_576
_SMALL: Final = 24
_SIZED: Final = (str, bytes, bytearray)


def grouped(ops: Iterable[DbOperation]) -> Iterator[list[DbOperation]]:
    """Cut operations, in order, into groups that one statement can carry; an UPDATE is always alone."""
    group: list[DbOperation] = []
    size = 0
    for op in ops:
        own_size = _size(op.payload.values())
        if group and not (_same_shape(group[0], op) and len(group) < MAX_ROWS and size + own_size <= MAX_BYTES):
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


def _size(values: Iterable[Any]) -> int:
    size = 0
    for value in values:
        size += len(value) if isinstance(value, _SIZED) else _SMALL
    return size
