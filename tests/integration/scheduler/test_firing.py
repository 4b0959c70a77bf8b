"""Each tick is fired once over all hosts: real Redis, virtual time."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from prometheus_client import REGISTRY

from conquiet.config import QueueConfig
from conquiet.processor import Jobs, JobState
from conquiet.processor.envelope import from_payload
from conquiet.processor.jobs import JobRecorder
from conquiet.processor.keys import keys_of
from conquiet.queue import RedisStreamsQueue
from conquiet.scheduler import Cron, Every, Once
from conquiet.scheduler.entries import from_ms
from conquiet.scheduler.misfires import FirePlan
from conquiet.scheduler.schedule_store import FireRequest, FireResult, ScheduleStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.scheduler.conftest import Stage

    from conquiet.testing import FaultProxy

START = 1_800_000_000_000


async def test_three_schedulers_fire_each_tick_of_ten_minutes_once(stage: Stage) -> None:
    """They wake at random moments, often together, and share only Redis."""
    entries = [
        stage.entry("second", Every(1), misfire_grace_s=60),
        stage.entry("five", Cron("*/5 * * * * *", "Europe/Berlin"), misfire_grace_s=60),
        stage.entry("seven", Every(7), jitter_s=3.0, misfire_grace_s=60),
        stage.entry("minute", Cron("* * * * *"), catch_up="all"),
        stage.entry("once", Once(from_ms(START + 123_456))),
    ]
    hosts = [await stage.started(*entries) for _ in range(3)]
    rand = random.Random(6)

    while stage.now < START + 600_000:
        stage.now += rand.choice((0, 1, 10, 400, 1_000, 2_500, 4_900))
        await asyncio.gather(*(host.tick() for host in hosts if rand.random() < 0.7))
    stage.now = START + 610_000
    await asyncio.gather(*(host.tick() for host in hosts))

    ids = await stage.ids()
    assert len(ids) == len(set(ids))
    expected = set()
    for entry in entries:
        due = entry.when.next_after(0 if entry.name == "once" else START)
        while due is not None and entry.fire_at(due) <= stage.now:
            expected.add(entry.fire_id(due))
            due = entry.when.next_after(due)
    assert set(ids) == expected
    assert len(ids) > 600
    assert [listed.missed for listed in await hosts[0].list_entries()] == [0] * len(entries)


async def test_a_fired_tick_is_an_ordinary_message_for_every_reader(stage: Stage) -> None:
    host = await stage.started(stage.entry("report", event="report.make", data={"kind": "sales"}))
    await stage.at(10, host)

    config = QueueConfig(stream_key=stage.stream, consumer_group="readers", consumer_name="one")
    with RedisStreamsQueue(stage.redis, config) as queue:
        message = queue.read(block_ms=1_000, count=1)[0]
    envelope = from_payload(message.payload, entry_id=message.id)
    assert (envelope.event, envelope.data, envelope.attempt) == ("report.make", {"kind": "sales"}, 1)
    assert envelope.id == f"report@{START + 10_000}"
    assert envelope.emitted_ms == START + 10_000


async def test_a_plan_made_from_an_old_pointer_is_void_as_a_whole(stage: Stage) -> None:
    """Host A decided at 10 s, host B at 20 s. The second one does nothing, and counts nothing as missed."""
    entry = stage.entry(catch_up="one", misfire_grace_s=0)
    first, second = await stage.started(entry), await stage.started(entry)
    await stage.at(0, first, second)
    stage.now = START + 25_000

    await first.tick()
    await second.tick()

    assert await stage.dues() == [20]
    assert (await first.list_entries())[0].missed == 1


async def test_the_server_refuses_what_is_not_due_by_its_own_clock(stage: Stage) -> None:
    """A host with a fast clock can send the script, but the script reads TIME itself."""
    host = stage.real(stage.entry())
    await host._firer.store_declared()
    store = ScheduleStore(stage.redis, stage.group)
    _, (record,), _ = await store.load(stage.stream)
    ahead = FirePlan((record.decided + 60_000,), 0, record.decided + 60_000, None)

    ((_, result, pointer, _),) = await store.fire(stage.stream, [FireRequest(record, ahead, [b"{}"])])

    assert result is FireResult.EARLY
    assert pointer == record.decided
    assert await stage.ids() == []


async def test_a_fired_plan_returns_the_new_pointer(stage: Stage) -> None:
    """Else the next plan of this host would be dropped, and its ticks a round late."""
    host = await stage.started(stage.entry())
    _, (record,), _ = await host._store.load(stage.stream)
    request = FireRequest(record, FirePlan((), 1, START + 10_000, START + 20_000), [])

    ((_, result, pointer, now),) = await host._store.fire(stage.stream, [request])

    assert (result, pointer, now) == (FireResult.DONE, START + 10_000, START)


async def test_a_lost_reply_of_the_firing_step_fires_nothing_twice(
    stage: Stage, fault_proxy: Callable[[str], FaultProxy]
) -> None:
    proxy = fault_proxy(stage.url)
    host = await stage.started(stage.entry(), url=proxy.url_for(stage.url))
    await stage.at(10, host)  # the script is known to the server from here on
    proxy.drop_next_reply(after_request_matching=b"beat@")

    with pytest.raises(Exception, match="no answer"):
        await stage.at(20, host)
    proxy.wait_for_fault()

    assert await stage.at(21, host) == [10, 20]
    assert await stage.at(30, host) == [10, 20, 30]
    assert (await host.list_entries())[0].fired == 3


async def test_a_request_that_never_arrived_is_made_up_for(
    stage: Stage, fault_proxy: Callable[[str], FaultProxy]
) -> None:
    proxy = fault_proxy(stage.url)
    host = await stage.started(stage.entry(), url=proxy.url_for(stage.url))
    await stage.at(10, host)
    proxy.drop_next_request(matching=b"beat@")

    with pytest.raises(Exception, match="no answer"):
        await stage.at(20, host)

    assert await stage.at(21, host) == [10, 20]


async def test_the_scripts_come_back_after_the_server_forgot_them(stage: Stage) -> None:
    host = await stage.started(stage.entry())
    await stage.at(10, host)
    await stage.redis.script_flush()

    assert await stage.at(20, host) == [10, 20]


async def test_a_refusing_stream_moves_no_pointer(stage: Stage) -> None:
    """The tick is not lost: it fires when the stream can be written again."""
    host = await stage.started(stage.entry(misfire_grace_s=60))
    await stage.redis.set(stage.stream, "not a stream")

    stage.now = START + 10_000
    wake_at = await host.tick()
    assert wake_at is not None
    assert stage.now < wake_at < stage.now + 1_000  # tried again in a moment
    await stage.redis.delete(stage.stream)

    assert await stage.at(11, host) == [10]


@pytest.mark.parametrize("what", ["stream", "state"])
async def test_a_stream_that_refuses_holds_back_no_other(
    stage: Stage, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A key of another type, for example: of the stream or of its entries."""
    bad = f"{stage.stream}-bad"
    keys = {"stream": bad, "state": f"{keys_of(bad).base}:schedule:{stage.group}:state"}
    host = await stage.started(stage.entry())
    if what == "stream":
        await host.add(stage.entry("oops", stream=bad))
    else:
        await stage.redis.sadd(f"{stage.group}:schedules", bad)
    await stage.redis.set(keys[what], "not of that type")
    before = REGISTRY.get_sample_value("conquiet_scheduler_errors_total", {"group": stage.group}) or 0

    assert await stage.at(10, host) == [10]
    assert await stage.at(20, host) == [10, 20]

    assert (REGISTRY.get_sample_value("conquiet_scheduler_errors_total", {"group": stage.group}) or 0) >= before + 2
    said = [record for record in caplog.records if record.__dict__.get("stream") == bad]
    assert "WRONGTYPE" in said[0].__dict__["reason"]
    another = await stage.started(stage.entry())  # nor does it keep a host from starting
    assert await stage.at(30, another) == [10, 20, 30]
    if what == "stream":
        await stage.redis.delete(bad)
        await stage.at(40, host)
        assert await stage.ids(bad) == [f"oops@{START + 40_000}"]


@pytest.mark.parametrize(
    ("policy", "fired", "missed"),
    [("skip", [10], 9), ("one", [10, 100], 8), ("all", [10, 80, 90, 100], 6)],
)
async def test_an_absence_of_all_hosts_goes_by_the_policy_and_is_counted(
    stage: Stage, policy: str, fired: list[int], missed: int
) -> None:
    entry = stage.entry(catch_up=policy, catch_up_limit=3)
    host = await stage.started(entry)
    before = REGISTRY.get_sample_value("conquiet_scheduler_missed_total", {"stream": stage.stream}) or 0
    await stage.at(10, host)

    later, another = await stage.started(entry), await stage.started(entry)  # both are returned, in any order
    assert await stage.at(109, later, another) == fired

    (listed,) = await later.list_entries()
    assert (listed.fired, listed.missed) == (len(fired), missed)
    after = REGISTRY.get_sample_value("conquiet_scheduler_missed_total", {"stream": stage.stream})
    assert (after or 0) - before == missed


async def test_fires_and_their_lateness_are_measured(stage: Stage) -> None:
    host = await stage.started(stage.entry())
    await stage.at(10, host)
    await stage.at(20.25, host)

    labels = {"stream": stage.stream}
    assert REGISTRY.get_sample_value("conquiet_scheduler_fired_total", labels) == 2
    assert REGISTRY.get_sample_value("conquiet_scheduler_lateness_seconds_count", labels) == 2
    assert REGISTRY.get_sample_value("conquiet_scheduler_lateness_seconds_sum", labels) == 0.25


async def test_a_fired_message_is_a_waiting_job_where_job_states_are_kept(stage: Stage) -> None:
    """Noted by the host that fired it, once, and never over what a processor has written since."""
    entry = stage.entry()
    hosts = [await stage.started(entry, job_ttl_s=60) for _ in range(2)]
    jobs = Jobs(hosts[0]._client)
    await stage.at(10, *hosts)
    first = await jobs.get(stage.stream, entry.fire_id(START + 10_000))
    done = (entry.fire_id(START + 20_000), "beat", 1, JobState.SUCCEEDED)
    # A quick processor is there before the note.
    await JobRecorder(hosts[0]._client, ttl_s=60).record_all(keys_of(stage.stream), [done])
    await stage.at(20, *hosts)

    assert first is not None
    assert (first.state, first.event, first.attempt) == (JobState.WAITING, "beat", 1)
    counts = await jobs.count(stage.stream)
    assert {state: count for state, count in counts.items() if count} == {JobState.WAITING: 1, JobState.SUCCEEDED: 1}


async def test_nothing_is_kept_about_jobs_unless_it_is_asked_for(stage: Stage) -> None:
    await stage.at(10, await stage.started(stage.entry()))

    assert await stage.redis.keys(f"*{stage.stream}*job:*") == []


async def test_jitter_is_the_same_on_every_host(stage: Stage) -> None:
    entry = stage.entry(jitter_s=5.0)
    first, second = await stage.started(entry), await stage.started(entry)
    fire_at = entry.fire_at(START + 10_000)

    wakes = [await first.tick(), await second.tick()]

    assert wakes == [fire_at, fire_at]
    assert await stage.at((fire_at - START) / 1_000 - 0.001, first, second) == []
    assert await stage.at((fire_at - START) / 1_000, second, first) == [10]


async def test_hundreds_of_entries_due_at_once_fire_once_each(stage: Stage) -> None:
    entries = [stage.entry(f"entry-{number:04}") for number in range(250)]
    first, second = await stage.started(*entries), await stage.started(*entries)
    stage.now = START + 10_000

    await asyncio.gather(first.tick(), second.tick())

    ids = await stage.ids()
    assert sorted(ids) == [f"entry-{number:04}@{START + 10_000}" for number in range(250)]
