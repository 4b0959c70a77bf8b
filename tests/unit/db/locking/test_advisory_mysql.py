"""GET_LOCK without a server."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest
from sqlalchemy import TextClause
from sqlalchemy.engine import Connection

from conquiet.db.locking import advisory_mysql
from conquiet.db.locking.advisory_mysql import get_lock
from conquiet.db.statement_execution import StatementResult
from conquiet.errors import LockAcquisitionError


@dataclass
class FakeExecute:
    """Replaces ``execute``: records the timeouts of GET_LOCK and returns the given reply."""

    answer: int | None
    timeouts: list[float] = field(default_factory=list)

    def __call__(self, _conn: Connection, _statement: TextClause, params: dict[str, float]) -> StatementResult:
        self.timeouts.append(params["timeout"])
        return StatementResult(1, ("x",), [(self.answer,)])


def a_connection(*, mariadb: bool) -> Connection:
    return cast("Connection", SimpleNamespace(dialect=SimpleNamespace(is_mariadb=mariadb)))


@pytest.mark.parametrize(("mariadb", "sent"), [(False, 1), (True, 0.3)])
def test_a_fraction_of_a_second_is_rounded_up_for_mysql_only(
    monkeypatch: pytest.MonkeyPatch,
    mariadb: bool,  # noqa: FBT001 - a parameter of the test
    sent: float,
) -> None:
    """MySQL rounds 0.3 to 0 and would not wait at all."""
    execute = FakeExecute(answer=1)
    monkeypatch.setattr(advisory_mysql, "execute", execute)

    get_lock(a_connection(mariadb=mariadb), "name", 0.3, what="a lock")

    assert execute.timeouts == [sent]


def test_a_lock_whose_wait_the_server_ended_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advisory_mysql, "execute", FakeExecute(answer=None))

    with pytest.raises(LockAcquisitionError, match="ended the wait"):
        get_lock(a_connection(mariadb=True), "name", 1, what="a lock")


@pytest.mark.parametrize("failure", [RuntimeError("lost"), KeyboardInterrupt()])
def test_a_connection_whose_lock_release_failed_is_not_pooled(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    closed: list[object] = []

    class OpenConnection:
        invalidated = closed = False

    def execute(*_: object) -> None:
        raise failure

    monkeypatch.setattr(advisory_mysql, "execute", execute)
    monkeypatch.setattr(advisory_mysql, "invalidate", closed.append)
    conn = cast("Connection", OpenConnection())
    try:
        advisory_mysql.release_lock(conn, "conquiet_lock:x")
    except KeyboardInterrupt:
        assert isinstance(failure, KeyboardInterrupt)

    assert closed == [conn]
