"""The backlog, computed from the server's numbers."""

from typing import Any

from conquiet.config import QueueConfig
from conquiet.queue.models import Backlog
from conquiet.queue.redis_streams import read_backlog


class FakeServer:
    """Replies of a server, by command."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def __call__(self, command: str, _packed: bytes) -> Any:
        return self._answers[command.split(" ", maxsplit=1)[0]]


def backlog(*, lag: int | None, length: int, waiting: str | None, pending: str | None = None) -> Backlog:
    row = [b"name", b"g", b"last-delivered-id", b"5-0", b"lag", lag]
    return read_backlog(
        QueueConfig("s", "g", "c"),
        FakeServer(
            XLEN=length,
            XINFO=[row],
            XPENDING=[1, pending.encode(), pending.encode(), []] if pending else [0, None, None, None],
            XRANGE=[[waiting.encode(), []]] if waiting else [],
            TIME=[b"100", b"0"],
        ),
    )


def test_a_lag_that_is_provably_wrong_is_corrected() -> None:
    assert backlog(lag=7, length=3, waiting="6-0").lag == 3
    assert backlog(lag=None, length=3, waiting=None).lag == 0
    assert backlog(lag=7, length=3, waiting=None).lag == 0
    assert backlog(lag=2, length=3, waiting="6-0").lag == 2
    assert backlog(lag=None, length=3, waiting="6-0").lag is None


def test_the_oldest_entry_is_pending_or_waiting() -> None:
    assert backlog(lag=1, length=2, waiting="60000-0", pending="40000-0").oldest_age_s == 60.0
    assert backlog(lag=1, length=2, waiting="60000-0", pending="9000-0").oldest_age_s == 91.0  # by number, not by text
    assert backlog(lag=1, length=2, waiting="60000-0").oldest_age_s == 40.0
    assert backlog(lag=0, length=2, waiting=None).oldest_age_s is None
    assert backlog(lag=0, length=2, waiting=None, pending="200000-0").oldest_age_s == 0.0  # a clock that went back
