"""Several locks as one."""

from typing import Any, cast

import pytest
from sqlalchemy.engine import Connection

from conquiet.db.locking import CompositeLockBackend, LockBackend
from conquiet.db.models import DbOperation, DbOperationType
from conquiet.errors import ConfigurationError, LockAcquisitionError

OP = DbOperation("orders", DbOperationType.UPDATE, 1, {"amount": 1})
NO_CONNECTION = cast("Connection", None)


class RecordingLock(LockBackend):
    def __init__(self, name: str, log: list[str], *, fails: bool = False) -> None:
        self.name, self.log, self.fails = name, log, fails

    def acquire(self, conn: Connection, op: DbOperation) -> None:
        if self.fails:
            raise LockAcquisitionError(f"{self.name} could not be acquired")
        self.log.append(f"+{self.name}")

    def acquire_and_read(self, conn: Connection, op: DbOperation, id_column: str) -> dict[str, Any]:
        self.acquire(conn, op)
        return {"read": self.name}

    def release(self, conn: Connection, op: DbOperation) -> None:
        self.log.append(f"-{self.name}")


@pytest.mark.spec("CQ-005.32", "CQ-005.33", "CQ-008.2")
def test_several_locks_are_acquired_in_order_and_released_in_reverse() -> None:
    log: list[str] = []
    both = CompositeLockBackend([RecordingLock("a", log), RecordingLock("b", log), RecordingLock("c", log)])

    both.acquire(NO_CONNECTION, OP)
    both.release(NO_CONNECTION, OP)
    acquired, log[:] = log[:], []
    assert both.acquire_and_read(NO_CONNECTION, OP, "id") == {"read": "c"}
    both.release(NO_CONNECTION, OP)

    assert acquired == log == ["+a", "+b", "+c", "-c", "-b", "-a"]


@pytest.mark.spec("CQ-005.33")
@pytest.mark.parametrize("reading", [False, True])
def test_a_lock_that_fails_releases_those_before_it(*, reading: bool) -> None:
    log: list[str] = []
    both = CompositeLockBackend([RecordingLock("a", log), RecordingLock("b", log), RecordingLock("c", log, fails=True)])

    with pytest.raises(LockAcquisitionError, match="c could not be acquired"):
        both.acquire_and_read(NO_CONNECTION, OP, "id") if reading else both.acquire(NO_CONNECTION, OP)

    assert log == ["+a", "+b", "-b", "-a"]


def test_a_composite_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        CompositeLockBackend([])
