"""Which operations travel together. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from conquiet.db.models import DbOperation, DbOperationType

# Past some hundred rows a statement gains little, and all of it waits for its slowest part.
MAX_ROWS: Final = 1_000
# A quarter of the smallest max_allowed_packet in use (4 MiB), values only, estimated.
MAX_BYTES: Final = 1_048_576
_SMALL: Final = 24


def grouped(ops: Iterable[DbOperation]) -> Iterator[list[DbOperation]]:
    """Cut operations, in order, into groups that one statement can carry; an UPDATE is always alone."""
    group: list[DbOperation] = []
    shape: tuple[str, tuple[str, ...]] | None = None
    size = 0
    for op in ops:
        own_shape = (op.table, tuple(op.payload)) if op.op_type is DbOperationType.INSERT else None
        own_size = sum(map(_size, op.payload.values()))
        if group and (own_shape is None or own_shape != shape or len(group) >= MAX_ROWS or size + own_size > MAX_BYTES):
            yield group
            group, size = [], 0
        group.append(op)
        shape, size = own_shape, size + own_size
    if group:
        yield group


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | bytearray) else _SMALL
