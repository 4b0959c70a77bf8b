"""The opening of a connection that can be aborted."""

from concurrent.futures import Future
from typing import Any

import pytest
from sqlalchemy import create_engine

from conquiet.db import statement_abort
from conquiet.db.statement_abort import AbortableEngine


class OpenedInTheLastMoment(Future[Any]):
    """A connection that is opened after a wait has timed out, and before its state is read."""

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self.set_result("the connection")
            raise TimeoutError
        return super().result(timeout)


def test_a_connection_opened_as_a_wait_ends_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was reported as a timeout, and stayed checked out of the pool."""
    opening = OpenedInTheLastMoment()
    monkeypatch.setattr(statement_abort, "call_in_daemon_thread", lambda *_, **__: opening)
    engine = AbortableEngine(create_engine("mysql+pymysql://127.0.0.1:1/x")).engine

    assert engine.raw_connection() == "the connection"  # type: ignore[comparison-overlap]
