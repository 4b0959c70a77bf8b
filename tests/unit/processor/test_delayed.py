"""The interval at which a promoter checks a stream."""

import asyncio
from dataclasses import replace
from typing import Any

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


@pytest.mark.parametrize(("streams", "expected"), [(1, [1.0]), (2, [1.0, 2.0]), (9, [*map(float, range(1, 9)), 1.0])])
async def test_quiet_streams_are_polled_in_turn(
    streams: int, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spread over time, and an eighth as often as a stream that has work."""

    async def nothing_is_due(*_: object, **__: object) -> Poll:
        return NOTHING

    monkeypatch.setattr("conquiet.processor.delayed.promote_due", nothing_is_due)
    keys = [keys_of(f"orders-{number}") for number in range(streams)]
    promoter = DelayedPromoter(None, keys, limit=10, refresh_s=1.0, listeners=[])  # type: ignore[arg-type]

    assert [await promoter._poll(one) for one in keys] == expected
    assert {await promoter._poll(one) for one in keys} == {8.0}


async def test_maintenance_continues_while_quiet_streams_are_not_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are passed to the metrics then, and runs that wait are ended at a stop."""
    polls = 0
    maintained = asyncio.Semaphore(0)

    async def nothing_is_due(*_: object, **__: object) -> Poll:
        nonlocal polls
        polls += 1
        if polls > 1:  # the first is part of the start
            await asyncio.Event().wait()
        return NOTHING

    class Silent:
        async def execute_command(self, *_: object) -> None:
            await asyncio.Event().wait()

    def maintain() -> None:
        maintained.release()
        raise LookupError  # ends nothing

    monkeypatch.setattr("conquiet.processor.delayed.promote_due", nothing_is_due)
    silent: Any = Silent()
    promoter = DelayedPromoter(silent, [keys_of("orders")], limit=10, refresh_s=0.02, listeners=[], maintain=maintain)
    await promoter.start()
    for _ in range(3):
        await asyncio.wait_for(maintained.acquire(), 60)
    await promoter.close()
