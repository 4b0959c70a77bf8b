"""An entry moves to the stream that its code names now: once, completely, through any number of interruptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from conquiet.scheduler import Every, Once, Origin, entry_codec
from conquiet.scheduler.entries import from_ms
from conquiet.scheduler.schedule_store import Position, ScheduleStore

if TYPE_CHECKING:
    from tests.integration.scheduler.conftest import Stage

START = 1_800_000_000_000


class KilledError(Exception):
    """The host ended here."""


async def all_dues(stage: Stage) -> list[int]:
    """Due times fired on either stream, in seconds from START."""
    ids = await stage.ids() + await stage.ids(f"{stage.stream}-other")
    return sorted((int(fire_id.rsplit("@", 1)[1]) - START) // 1_000 for fire_id in ids)


async def test_a_paused_entry_that_moves_stays_paused(stage: Stage) -> None:
    old = await stage.started(stage.entry())
    await stage.at(10, old)
    await old.pause("beat")

    new = await stage.started(stage.entry(stream=f"{stage.stream}-other"))
    await stage.at(20, old, new)

    (listed,) = await new.list_entries()
    assert (listed.entry.stream, listed.paused_since) == (f"{stage.stream}-other", from_ms(START + 10_000))
    assert await all_dues(stage) == [10]
    await new.resume("beat")
    await stage.at(30, old, new)
    assert await all_dues(stage) == [10, 30]


async def test_an_entry_that_moves_keeps_its_place_unless_its_times_change(stage: Stage) -> None:
    """No host ran between 10 and 35: the entry's policy decides about what was due then, as without the move."""
    await stage.at(
        10, await stage.started(stage.entry(catch_up="all"), stage.entry("other", Every(10), catch_up="all"))
    )
    stage.now = START + 35_000
    moved = stage.entry(catch_up="all", stream=f"{stage.stream}-other")
    changed = stage.entry("other", Every(20), catch_up="all", stream=f"{stage.stream}-other")

    await stage.at(40, await stage.started(moved, changed))

    fired = await stage.ids(f"{stage.stream}-other")
    assert [fire_id for fire_id in fired if fire_id.startswith("beat@")] == [
        f"beat@{START + second * 1_000}" for second in (20, 30, 40)
    ]
    assert [fire_id for fire_id in fired if fire_id.startswith("other@")] == [f"other@{START + 40_000}"]


async def test_a_one_off_time_that_was_fired_is_not_fired_again_elsewhere(stage: Stage) -> None:
    when = Once(from_ms(START + 10_000))
    await stage.at(10, await stage.started(stage.entry(when=when)))

    await stage.at(20, await stage.started(stage.entry(when=when, stream=f"{stage.stream}-other")))

    assert await all_dues(stage) == [10]


@pytest.mark.parametrize("killed", ["before", "after"])
@pytest.mark.parametrize("step", ["freeze", "declare", "remove"])
@pytest.mark.parametrize(
    ("next_starts", "state"),
    [(["new"], "running"), (["old"], "running"), (["new", "old"], "running"), (["new"], "paused"), (["old"], "paused")],
    ids=lambda given: given if isinstance(given, str) else " and ".join(given),
)
async def test_an_interrupted_move_fires_no_tick_twice_and_is_completed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, killed: str, step: str, next_starts: list[str], state: str
) -> None:
    """The deployment continues, or is rolled back, or both."""
    entries = {"old": stage.entry(), "new": stage.entry(stream=f"{stage.stream}-other")}
    old = await stage.started(entries["old"])
    await stage.at(10, old)
    if state == "paused":
        await old.pause("beat")
    whole_step = getattr(ScheduleStore, step)

    async def interrupted(self: ScheduleStore, *args: Any, **options: Any) -> None:
        if killed == "after":
            await whole_step(self, *args, **options)
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(ScheduleStore, step, interrupted)
        with pytest.raises(KilledError):
            await stage.started(entries["new"])
    await stage.at(20, old)  # the hosts of the old release are still there
    hosts = [old, *[await stage.started(entries[release]) for release in next_starts]]
    await stage.at(21, *hosts)
    await stage.at(30, *hosts)
    await stage.at(40, *hosts)

    assert await all_dues(stage) == ([10] if state == "paused" else [10, 20, 30, 40])
    (listed,) = await old.list_entries()
    assert listed.entry.stream == entries[next_starts[-1]].stream
    assert (listed.paused_since is not None) == (state == "paused")


async def test_pausing_an_entry_during_a_move_applies_to_its_new_stream(stage: Stage) -> None:
    old = await stage.started(stage.entry())
    await stage.at(10, old)
    _, (record,), _ = await old._store.load(stage.stream)
    assert await old._store.freeze(record) is not None

    assert await old.pause("beat")
    assert not await old.pause("beat")
    new = await stage.started(stage.entry(stream=f"{stage.stream}-other"))
    await stage.at(20, old, new)
    assert await all_dues(stage) == [10]

    _, (record,), _ = await new._store.load(f"{stage.stream}-other")
    assert await new._store.freeze(record) is not None
    assert await new.resume("beat")
    assert not await new.resume("beat")
    await stage.at(30, old, new)
    assert await all_dues(stage) == [10]  # still frozen
    back = await stage.started(stage.entry())
    await stage.at(40, old, new, back)
    assert await all_dues(stage) == [10, 40]


async def test_an_entry_on_two_streams_continues_from_the_later_pointer(stage: Stage) -> None:
    """Two releases were deployed concurrently and fired.

    The stream's pause is kept, unless the entry was leaving it.
    """
    entry = stage.entry()
    host = await stage.started(entry)
    store = host._store
    times = entry_codec.times_digest(entry)
    await host.pause("beat")

    await store.declare(entry, Origin.CODE, position=Position(times, START + 20_000, None))
    _, (record,), _ = await store.load(stage.stream)
    assert (record.decided, record.paused_since) == (START + 20_000, START)

    await store.freeze(record)
    await store.declare(entry, Origin.CODE, position=Position(times, START + 10_000, START + 5_000))
    _, (record,), _ = await store.load(stage.stream)
    assert (record.decided, record.paused_since) == (START + 20_000, START + 5_000)
