"""The effect of a disposition on the counters of its session, on an open link and on a closed one."""

from types import SimpleNamespace
from typing import Any

import pytest

from conquiet.rabbit.counters import DeliveryStats
from conquiet.rabbit.link_session import LinkSession
from conquiet.rabbit.settle import Disposition


def a_link(sent: list[Any], *, is_there: bool = True) -> Any:
    def send(*_: int, **arguments: Any) -> bool:
        sent.append(arguments)
        return is_there

    return SimpleNamespace(ack=send, reject=send)


@pytest.mark.parametrize(
    ("disposition", "frame", "counted"),
    [
        (Disposition.ACK, {"up_to": 1, "singles": ()}, "ack"),
        (Disposition.DROP, {"singles": (1,)}, "dropped"),
        (Disposition.REQUEUE, {"requeue": True}, "requeued"),
        (Disposition.DEAD_LETTER, {"requeue": False}, "dead_lettered"),
        (Disposition.DEAD_LETTER_AND_STOP, {"requeue": False}, "dead_lettered"),
    ],
)
@pytest.mark.parametrize("link_is_there", [True, False])
async def test_only_what_reached_the_broker_counts_and_is_progress(
    disposition: Disposition, frame: dict[str, Any], counted: str, *, link_is_there: bool
) -> None:
    """After any progress a lost link counts as the first of consecutive failures."""
    sent: list[Any] = []
    session = LinkSession(a_link(sent, is_there=link_is_there), DeliveryStats("work"), 10)
    (delivery,) = session.received([(1, False, b"", b"{}")])

    session.settle(delivery, disposition)
    session.flush()

    assert sent == [frame]
    assert session._window.open_count == 0
    assert session.made_progress == link_is_there
    assert getattr(session._stats.count, counted) == (1 if link_is_there else 0)
    assert session._stats.count.stale == (0 if link_is_there else 1)


async def test_a_fatal_delivery_stays_unsettled_and_no_ack_includes_it() -> None:
    sent: list[Any] = []
    session = LinkSession(a_link(sent), DeliveryStats("work"), 10)
    first, broken, last = session.received([(tag, False, b"", b"{}") for tag in (1, 2, 3)])

    for delivery, disposition in ((last, Disposition.ACK), (broken, Disposition.STOP), (first, Disposition.ACK)):
        session.settle(delivery, disposition)
    session.flush()

    assert sent == [{"up_to": 1, "singles": (3,)}]
    assert (session._stats.count.ack, session._stats.count.fatal) == (2, 1)


async def test_half_a_window_is_acknowledged_without_waiting_for_the_loop() -> None:
    sent: list[Any] = []
    session = LinkSession(a_link(sent), DeliveryStats("work"), 10)
    deliveries = session.received([(tag, False, b"", b"{}") for tag in range(1, 11)])

    for delivery in deliveries[:4]:
        session.settle(delivery, Disposition.ACK)
    assert sent == []
    session.settle(deliveries[4], Disposition.ACK)

    assert sent == [{"up_to": 5, "singles": ()}]


@pytest.mark.parametrize("link_is_there", [True, False])
async def test_a_moved_message_is_acknowledged_alone_and_counts_as_dead_lettered(*, link_is_there: bool) -> None:
    sent: list[Any] = []
    session = LinkSession(a_link(sent, is_there=link_is_there), DeliveryStats("work"), 10)
    _, moved = session.received([(tag, False, b"", b"{}") for tag in (1, 2)])

    session.moved(moved)

    assert sent == [{"singles": (2,)}]
    assert (session._stats.count.dead_lettered, session._stats.count.stale) == ((1, 0) if link_is_there else (0, 1))
    assert session._window.open_count == 1
