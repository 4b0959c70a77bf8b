"""How often a promoter looks at a stream."""

from dataclasses import replace

import pytest

from conquiet.processor.delayed import DelayedPromoter, Poll
from conquiet.processor.keys import keys_of

NOTHING = Poll(
    moved=0,
    next_due_ms=None,
    now_ms=1_000,
    ahead_ms=0,
    wake_id="0-0",
    paused={},
    parked=frozenset(),
    waiting=0,
    dead=3,
    oldest_dead_ms=None,
)


@pytest.mark.parametrize(
    "change",
    [
        {"moved": 1},
        {"waiting": 1},
        {"paused": {"*": 1}},
        {"parked": frozenset({"pay"})},
        {"moving": 1},
        {"cancel_requests": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_stream_with_something_to_do_is_not_quiet(change: dict[str, object]) -> None:
    assert NOTHING.is_quiet
    assert not replace(NOTHING, **change).is_quiet  # type: ignore[arg-type]


@pytest.mark.parametrize(("streams", "expected"), [(1, [1.0]), (2, [1.0, 2.0]), (6, [1.0, 2.0, 3.0, 4.0, 1.0, 2.0])])
async def test_quiet_streams_are_polled_in_turn(
    streams: int, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some stream is polled in every period, because processors do their own housekeeping then."""

    async def nothing_is_due(*_: object, **__: object) -> Poll:
        return NOTHING

    monkeypatch.setattr("conquiet.processor.delayed.promote_due", nothing_is_due)
    keys = [keys_of(f"orders-{number}") for number in range(streams)]
    promoter = DelayedPromoter(None, keys, limit=10, refresh_s=1.0, listeners=[])  # type: ignore[arg-type]

    assert [await promoter._poll(one) for one in keys] == expected
    assert {await promoter._poll(one) for one in keys} == {float(min(4, streams))}
