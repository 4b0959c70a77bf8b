"""Entries of code and of run time, and their state: real Redis, virtual time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from conquiet.errors import ConfigurationError
from conquiet.scheduler import Cron, Every, Once, Origin, Schedules
from conquiet.scheduler.entries import from_ms

if TYPE_CHECKING:
    from tests.integration.scheduler.conftest import Stage

START = 1_800_000_000_000


async def test_an_entry_added_at_run_time_is_fired_by_all_hosts(stage: Stage) -> None:
    host = await stage.started()
    operator = Schedules(stage.redis, group=stage.group, now_ms=lambda: stage.now)
    await stage.at(0, host)

    assert await operator.add(stage.entry("extra"))
    assert await stage.at(10, host) == [10]
    assert not await operator.add(stage.entry("extra"))  # the same again changes nothing

    restarted = await stage.started()
    assert await stage.at(20, restarted) == [10, 20]  # and it survives
    assert await operator.remove("extra")
    assert not await operator.remove("extra")
    assert await stage.at(30, host, restarted) == [10, 20]
    assert await operator.list_entries() == []
    await operator.close()


async def test_only_an_entry_can_be_added(stage: Stage) -> None:
    wrong: Any = "nightly"

    with pytest.raises(ConfigurationError, match="must be a ScheduleEntry, got a str"):
        await stage.real(stage.entry()).add(wrong)


async def test_the_list_shows_the_state_of_each_entry(stage: Stage) -> None:
    host = await stage.started(stage.entry("b-code"), stage.entry("a-code", Every(60)))
    await host.add(stage.entry("c-extra", Once(from_ms(START + 3_600_000)), stream=f"{stage.stream}-other"))
    await stage.at(20, host)
    await host.pause("a-code")

    paused, running, extra = await host.list_entries()

    assert [paused.entry.name, running.entry.name, extra.entry.name] == ["a-code", "b-code", "c-extra"]
    assert (paused.paused_since, paused.next_run) == (from_ms(START + 20_000), None)
    assert (running.fired, running.missed, running.origin) == (1, 1, Origin.CODE)
    assert (running.last_fire, running.next_run) == (from_ms(START + 20_000), from_ms(START + 30_000))
    assert (extra.origin, extra.fired, extra.last_fire) == (Origin.RUNTIME, 0, None)
    assert extra.entry.when.next_after(START) == START + 3_600_000


async def test_next_runs_of_all_entries_come_in_the_order_they_will_fire(stage: Stage) -> None:
    held_back = stage.entry("c", Every(20), jitter_s=5.0)
    host = await stage.started(stage.entry("a", Every(10)), stage.entry("b", Cron("*/15 * * * * *")), held_back)

    runs = await host.next_runs(6)

    jittered = held_back.fire_at(START + 20_000)
    expected = sorted(
        [(10_000, "a"), (15_000, "b"), (20_000, "a"), (30_000, "a"), (30_000, "b"), (jittered - START, "c")]
    )
    assert [(round(run.at.timestamp() * 1_000) - START, run.name) for run in runs] == expected
    assert [run.due for run in runs if run.name == "c"] == [from_ms(START + 20_000)]
    assert [run.name for run in await host.next_runs(2, name="b")] == ["b", "b"]

    await host.pause("a")
    assert "a" not in {run.name for run in await host.next_runs(5)}
    with pytest.raises(ConfigurationError, match="count"):
        await host.next_runs(0)


async def test_a_pause_holds_on_every_host_at_once_and_through_restarts(stage: Stage) -> None:
    """The other host has not polled since: the firing script itself refuses."""
    entry = stage.entry()
    first, second = await stage.started(entry), await stage.started(entry)
    await stage.at(10, first, second)
    stage.now += 9_000
    await second.tick()

    assert await first.pause("beat")
    assert not await first.pause("beat")
    stage.now = START + 20_000
    fired_by_due = second._firer._due(stage.now)
    await second._firer._fire_stream(stage.stream, fired_by_due[stage.stream])  # a round that began before the pause
    assert await stage.dues() == [10]
    restarted = await stage.started(entry)
    assert await stage.at(40, first, second, restarted) == [10]

    assert await restarted.resume("beat")
    assert not await restarted.resume("beat")
    assert await stage.at(45, first, second, restarted) == [10]  # ticks of the pause are dropped
    assert await stage.at(50, first, second, restarted) == [10, 50]
    assert (await first.list_entries())[0].missed == 0


async def test_a_pause_that_ends_before_a_delayed_tick_keeps_the_tick(stage: Stage) -> None:
    entry = stage.entry(when=Every(3600), jitter_s=3000.0)
    due = next(
        due for due in range(3600, 360_000, 3600) if entry.fire_at(START + due * 1000) > START + due * 1000 + 60_000
    )
    host = await stage.started(entry)
    before = await stage.at(due - 1, host)
    fire_at = (entry.fire_at(START + due * 1000) - START) / 1000

    await stage.at(due + 10, host)
    await host.pause("beat")
    await stage.at(due + 20, host)
    await host.resume("beat")

    assert await stage.at(fire_at - 1, host) == before
    assert await stage.at(fire_at, host) == [*before, due]


async def test_a_resumption_after_the_clock_was_set_back_fires_nothing_twice(stage: Stage) -> None:
    host = await stage.started(stage.entry())
    for second in (10, 20, 30):
        await stage.at(second, host)
    await host.pause("beat")
    stage.now = START + 5_000

    assert await host.resume("beat")

    for second in (10, 20, 30):
        assert await stage.at(second, host) == [10, 20, 30]
    assert await stage.at(40, host) == [10, 20, 30, 40]


async def test_a_resumption_of_what_is_not_paused_changes_nothing(stage: Stage) -> None:
    """No host ran between 10 and 35: the policy decides about what was due then."""
    host = await stage.started(stage.entry(catch_up="all"))
    await stage.at(10, host)
    stage.now = START + 35_000

    assert not await host.resume("beat")

    assert await stage.at(35, host) == [10, 20, 30]


async def test_resuming_from_an_old_record_fires_nothing_twice(stage: Stage) -> None:
    host = await stage.started(stage.entry())
    _, (record,), _ = await host._store.load(stage.stream)
    await stage.at(10, host)
    await host.pause("beat")

    assert await host._store.resume(record, record.decided)

    assert await stage.at(12, host) == [10]


async def test_a_long_pause_leaves_nothing_to_catch_up_on(stage: Stage) -> None:
    host = await stage.started(stage.entry(when=Every(1), catch_up="all", misfire_grace_s=3600, jitter_s=2.0))
    await host.pause("beat")
    await stage.at(2_000, host)
    await host.resume("beat")

    await stage.at(2_003, host)

    assert min(await stage.dues()) >= 1_998
    assert (await host.list_entries())[0].missed == 0


async def test_a_one_off_time_passed_during_a_pause_follows_its_policy(stage: Stage) -> None:
    host = await stage.started(stage.entry("once", Once(from_ms(START + 10_000))))
    await host.pause("once")
    assert await stage.at(30, host) == []

    await host.resume("once")

    assert await stage.at(31, host) == [10]


@pytest.mark.parametrize("action", ["pause", "resume"])
async def test_an_unknown_name_is_an_error_that_says_where_to_look(stage: Stage, action: str) -> None:
    host = await stage.started()

    with pytest.raises(ConfigurationError, match=r"no entry named 'nothing'.*list_entries"):
        await getattr(host, action)("nothing")


async def test_entries_that_code_no_longer_declares_are_reported_and_not_fired(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    old = await stage.started(stage.entry("kept"), stage.entry("dropped"))
    await old.add(stage.entry("extra"))
    new = await stage.started(stage.entry("kept"))

    await stage.at(10, new)

    assert sorted(await stage.ids()) == [f"extra@{START + 10_000}", f"kept@{START + 10_000}"]
    assert await new.undeclared() == ["dropped"]
    assert await old.undeclared() == []
    reports = [record for record in caplog.records if "no longer declared" in record.message]
    assert [record.__dict__["entry"] for record in reports] == ["dropped"]
    assert "dropped" not in {run.name for run in await new.next_runs(10)}

    # A host of the old release, still running during the deploy, declares it and continues to fire it.
    await stage.at(10, old)
    assert f"dropped@{START + 10_000}" in await stage.ids()

    await new.remove("dropped")
    assert await new.undeclared() == []


async def test_new_times_start_from_now_and_other_changes_keep_the_place(stage: Stage) -> None:
    """An hourly entry that becomes one of ten seconds does not fire for the hours before."""
    await stage.at(1_000, await stage.started(stage.entry(when=Every(3_600), catch_up="all")))

    changed = await stage.started(stage.entry(when=Every(10), catch_up="all"))
    assert await stage.at(1_010, changed) == [1010]

    stage.now = START + 1_025_000
    with_other_data = await stage.started(stage.entry(when=Every(10), catch_up="all", data={"x": 1}))
    assert await stage.at(1_030, changed, with_other_data) == [1010, 1020, 1030]
    assert [message["data"] for _, message in await stage.messages()] == [{}, {"x": 1}, {"x": 1}]


async def test_an_entry_that_moves_to_another_stream_leaves_nothing_behind(stage: Stage) -> None:
    other = f"{stage.stream}-other"
    old = await stage.started(stage.entry())
    await stage.at(20, old)  # one fired, one missed

    new = await stage.started(stage.entry(stream=other))
    await stage.at(30, old, new)

    assert await stage.ids() == [f"beat@{START + 20_000}"]
    assert await stage.ids(other) == [f"beat@{START + 30_000}"]
    assert [listed.entry.stream for listed in await new.list_entries()] == [other]
    assert set(await stage.redis.hgetall(new._store._state(stage.stream))) == {b"epoch", b"version"}


async def test_a_declared_one_off_time_fires_once_over_all_restarts(stage: Stage) -> None:
    entry = stage.entry("launch", Once(from_ms(START + 10_000)))
    assert await stage.at(10, await stage.started(entry)) == [10]
    assert await stage.at(20, await stage.started(entry)) == [10]
    assert (await (await stage.started(entry)).list_entries())[0].next_run is None


async def test_a_one_off_time_added_at_run_time_is_removed_after_firing(stage: Stage) -> None:
    first, second = await stage.started(), await stage.started()
    await first.add(stage.entry("once", Once(from_ms(START + 10_000))))
    await stage.at(5, first, second)

    assert await stage.at(10, first, second) == [10]
    assert await stage.at(20, second, first) == [10]

    assert await first.list_entries() == []
    assert not [key async for key in stage.redis.scan_iter(f"*{stage.group}:entries")]
    assert set(await stage.redis.hgetall(first._store._state(stage.stream))) == {b"epoch", b"version"}


async def test_names_are_not_taken_from_others(stage: Stage) -> None:
    host = await stage.started(stage.entry("code"))
    await host.add(stage.entry("extra"))

    with pytest.raises(ConfigurationError, match="declared in code"):
        await host.add(stage.entry("code"))
    with pytest.raises(ConfigurationError, match="replace=True"):
        await host.add(stage.entry("extra", Every(20)))
    with pytest.raises(ConfigurationError, match="another stream"):
        await host.add(stage.entry("extra", stream=f"{stage.stream}-other"))
    with pytest.raises(ConfigurationError, match="two different entries"):
        host.declare(stage.entry("code", Every(20)))

    assert await host.add(stage.entry("extra", Every(20)), replace=True)
    assert await host.add(stage.entry("extra", stream=f"{stage.stream}-other"), replace=True)
    assert [listed.entry.stream for listed in await host.list_entries()] == [stage.stream, f"{stage.stream}-other"]


async def test_code_takes_over_a_name_that_was_added_at_run_time(stage: Stage) -> None:
    await (await stage.started()).add(stage.entry())
    host = await stage.started(stage.entry())

    assert [listed.origin for listed in await host.list_entries()] == [Origin.CODE]
    assert await stage.at(10, host) == [10]


async def test_groups_do_not_see_each_other(stage: Stage) -> None:
    one = await stage.started(stage.entry())
    other = await stage.started(group=f"{stage.group}-other")

    assert await stage.at(10, other) == []
    assert await other.list_entries() == []
    assert await stage.at(10, one) == [10]


async def test_a_definition_of_a_newer_release_is_reported_and_stops_nothing_else(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    host = await stage.started(stage.entry())
    await host.add(stage.entry("future"))
    (entries,) = [key async for key in stage.redis.scan_iter(f"*{stage.group}:entries")]
    stored = json.loads(await stage.redis.hget(entries, "future") or b"")
    await stage.redis.hset(entries, "future", json.dumps({**stored, "v": 2}))

    assert await stage.at(10, host) == [10]
    assert [record.__dict__["entry"] for record in caplog.records if "cannot be read" in record.message] == ["future"]
    assert await host.remove("future")


@pytest.mark.parametrize("where", ["name", "state", "version", "pointer", "directory", "braces"])
async def test_foreign_data_in_the_store_stops_no_scheduler(stage: Stage, where: str) -> None:
    host = await stage.started(stage.entry())
    await host.add(stage.entry("other"))
    (entries,) = [key async for key in stage.redis.scan_iter(f"*{stage.group}:entries")]
    state = entries.replace(b":entries", b":state")
    match where:
        case "name":
            await stage.redis.hset(entries, b"\xff", "{}")
        case "state":
            await stage.redis.hset(state, b"\xff", b"\xff")
        case "version":
            await stage.redis.hset(state, "version", "x")
        case "pointer":
            await stage.redis.hset(state, "last:other", "9" * 30)
        case _:
            await stage.redis.sadd(f"{stage.group}:schedules", b"\xff" if where == "directory" else "a{b")

    assert (await stage.at(10, host))[0] == 10
    assert "beat" in [listed.entry.name for listed in await host.list_entries()]


async def test_lost_schedule_data_is_stored_again_from_code(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """FLUSHALL, or a server that restarted empty. Nothing due before that is fired again."""
    host, other = await stage.started(stage.entry()), await stage.started(stage.entry())
    await stage.at(10, host, other)
    keys = [key async for key in stage.redis.scan_iter(f"*{stage.group}*")]
    await stage.redis.delete(stage.stream, *keys)

    assert await stage.at(15, host, other) == []
    assert await stage.at(20, host, other) == [20]
    assert any("schedule data was lost" in record.message for record in caplog.records)


async def test_after_data_loss_only_future_one_off_times_fire(stage: Stage) -> None:
    entries = [
        stage.entry("migrate", Once(from_ms(START + 10_000))),
        stage.entry("launch", Once(from_ms(START + 30_000))),
    ]
    hosts = [await stage.started(*entries), await stage.started(*entries)]
    assert await stage.at(10, *hosts) == [10]
    await stage.redis.delete(*[key async for key in stage.redis.scan_iter(f"*{stage.group}*")])

    assert await stage.at(20, *hosts) == [10]
    assert await stage.at(30, *hosts) == [10, 30]


async def test_removing_what_code_declares_lasts_until_the_next_start(stage: Stage) -> None:
    host = await stage.started(stage.entry())
    await stage.at(10, host)
    await host.remove("beat")

    assert await stage.at(20, host) == [10]
    assert await stage.at(30, await stage.started(stage.entry())) == [10, 30]
    assert await stage.at(40, host) == [10, 30, 40]
