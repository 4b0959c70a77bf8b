"""What a settlement does to the numbers of its session, on a link that is there and on one that is gone."""

from types import SimpleNamespace
from typing import Any

import pytest

from conquiet.rabbit.counters import Tally
from conquiet.rabbit.session import Session
from conquiet.rabbit.settle import Settlement


def a_link(sent: list[Any], *, is_there: bool = True) -> Any:
    def send(*_: int, **arguments: Any) -> bool:
        sent.append(arguments)
        return is_there

    return SimpleNamespace(ack=send, reject=send)


@pytest.mark.parametrize(
    ("settlement", "frame", "counted"),
    [
        (Settlement.ACK, {"up_to": 1, "singles": ()}, "ack"),
        (Settlement.DROP, {"singles": (1,)}, "dropped"),
        (Settlement.REQUEUE, {"requeue": True}, "requeued"),
        (Settlement.DEAD_LETTER, {"requeue": False}, "dead_lettered"),
        (Settlement.DEAD_LETTER_AND_STOP, {"requeue": False}, "dead_lettered"),
    ],
)
@pytest.mark.parametrize("link_is_there", [True, False])
async def test_only_what_reached_the_broker_counts_and_is_progress(
    settlement: Settlement, frame: dict[str, Any], counted: str, *, link_is_there: bool
) -> None:
    """Progress of any kind makes a lost link the first failure in a row again."""
    sent: list[Any] = []
    session = Session(a_link(sent, is_there=link_is_there), Tally("work"), 10)
    (delivery,) = session.received([(1, False, b"", b"{}")])

    session.settle(delivery, settlement)
    session.flush()

    assert sent == [frame]
    assert session._window.open_count == 0
    assert session.made_progress == link_is_there
    assert getattr(session._tally.count, counted) == (1 if link_is_there else 0)
    assert session._tally.count.stale == (0 if link_is_there else 1)


async def test_what_stops_the_consumer_is_settled_by_nobody_and_no_acknowledgement_passes_over_it() -> None:
    sent: list[Any] = []
    session = Session(a_link(sent), Tally("work"), 10)
    first, broken, last = session.received([(tag, False, b"", b"{}") for tag in (1, 2, 3)])

    for delivery, settlement in ((last, Settlement.ACK), (broken, Settlement.STOP), (first, Settlement.ACK)):
        session.settle(delivery, settlement)
    session.flush()

    assert sent == [{"up_to": 1, "singles": (3,)}]
    assert (session._tally.count.ack, session._tally.count.fatal) == (2, 1)
