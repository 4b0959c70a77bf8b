"""The jobs and keys of a partitioned stream are shown and changed like the jobs of one stream."""

from collections.abc import AsyncIterator

import pytest
from tests.redis_clients import RawAsyncRedis

from conquiet.errors import ConfigurationError
from conquiet.management import JobAdmin, JobChange, JobFilter, JobPhase
from conquiet.processor import NewMessage, PartitionedEmitter, PartitionedStream, ProcessorSettings
from conquiet.processor.dead_letter_record import DeadRecord, encode_record
from conquiet.processor.key_order import PartitionedKeyOrder
from conquiet.processor.keys import keys_of
from conquiet.processor.partitions import partition_name

PARTITIONS = 3
GROUP = "processor"
DELAYED = [f"later-{number}" for number in range(12)]
WAITING = [f"now-{number}" for number in range(12)]


@pytest.fixture
async def aio(redis_url: str) -> AsyncIterator[RawAsyncRedis]:
    own = RawAsyncRedis.from_url(redis_url, protocol=2)
    yield own
    await own.aclose()


@pytest.fixture
async def names(aio: RawAsyncRedis, stream: str) -> list[str]:
    """Spread jobs over three partitions: twelve wait, twelve are delayed, one in each is dead. Return their keys."""
    await PartitionedStream(aio, stream).grow(PARTITIONS)
    found = [partition_name(stream, index) for index in range(PARTITIONS)]
    for name in found:
        await aio.xgroup_create(name, GROUP, id="0", mkstream=True)
        dead = f"dead of {name}"
        payload = {"event": "pay", "id": dead, "data": {"iban": "old"}, "attempt": 1}
        record = DeadRecord(reason="rejected", id=dead, entry_id="1-1", group=GROUP, event="pay", payload=payload)
        await aio.xadd(keys_of(name).dead, {"record": encode_record(record)})
    emitter = PartitionedEmitter(aio, stream, settings=ProcessorSettings())
    await emitter.emit_many([NewMessage("pay", id=one) for one in WAITING])
    await emitter.emit_many([NewMessage("remind", id=one, delay_s=600.0) for one in DELAYED])
    assert [await aio.xlen(name) > 0 for name in found] == [True] * 3
    assert [await aio.zcard(keys_of(name).delayed) > 0 for name in found] == [True] * 3
    return found


@pytest.fixture
def jobs(aio: RawAsyncRedis, stream: str, names: list[str]) -> JobAdmin:
    return JobAdmin(aio, stream)


async def ids(jobs: JobAdmin, phase: str, limit: int = 100) -> list[str]:
    """Return the jobs of all pages."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await jobs.list(phase, cursor=cursor, limit=limit)
        assert len(page.jobs) <= limit
        found += [job.id for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            return found


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize(("phase", "wanted"), [("waiting", WAITING), ("delayed", DELAYED)])
async def test_pages_hold_each_job_of_all_partitions_once(
    jobs: JobAdmin, phase: str, wanted: list[str], limit: int
) -> None:
    assert sorted(await ids(jobs, phase, limit)) == sorted(wanted)


@pytest.mark.parametrize("cursor", ["7/0", "x/0", "1763244000000-0"])
async def test_a_cursor_of_another_list_is_refused(jobs: JobAdmin, cursor: str) -> None:
    with pytest.raises(ConfigurationError, match="is not one of this list"):
        await jobs.list("waiting", cursor=cursor)


async def test_a_job_is_shown_and_changed_in_whatever_partition_it_is(jobs: JobAdmin) -> None:
    for one in DELAYED[:4]:
        assert (await jobs.show(one)).phase is JobPhase.DELAYED
        assert (await jobs.run_now(one)).change is JobChange.MOVED
    for one in DELAYED[4:8]:
        assert (await jobs.reschedule(one, delay_s=5.0)).change is JobChange.MOVED
    for one in WAITING:
        assert (await jobs.cancel(one)).change is JobChange.CANCELLED

    assert sorted(await ids(jobs, "waiting")) == sorted(DELAYED[:4])
    assert (await jobs.show(WAITING[0])).phase is JobPhase.CANCELLED
    assert (await jobs.show("none")).phase is None
    assert (await jobs.cancel("none")).change is JobChange.GONE


async def test_a_dead_letter_of_any_partition_is_edited_and_retried(
    jobs: JobAdmin, aio: RawAsyncRedis, names: list[str]
) -> None:
    last = (await aio.xrange(keys_of(names[2]).dead))[0][0].decode() + ".2"

    found = await jobs.dead_letter(last)
    report = await jobs.edit_and_retry(last, {"iban": "new"})

    assert found is not None
    assert report.change is JobChange.MOVED
    assert sorted(await ids(jobs, "dead")) == sorted(f"dead of {name}" for name in names if name != found.stream)
    assert await jobs.dead_letter("1-1") is None


async def test_a_bulk_change_and_its_limit_hold_for_all_partitions(jobs: JobAdmin) -> None:
    seen: list[int] = []
    would = await jobs.bulk("cancel", "delayed", dry_run=True)
    some = await jobs.bulk("cancel", "delayed", limit=7, name="some")
    again = await jobs.bulk("cancel", "delayed", limit=7, name="some")
    rest = await jobs.bulk(
        "cancel",
        "delayed",
        JobFilter(event="remind"),
        name="rest",
        on_progress=lambda so_far: seen.append(so_far.changed),
    )

    assert (would.matched, would.changed, would.done) == (12, 0, True)
    assert (some.matched, some.changed, some.done) == (7, 7, True)
    assert again.changed == 7
    assert (rest.changed, rest.done) == (5, True)
    assert seen == sorted(seen)
    assert seen[-1] == 5
    assert await jobs.bulk_progress("rest") == rest
    assert await jobs.bulk_progress("none") is None
    assert await ids(jobs, "delayed") == []


async def test_a_reset_empties_all_partitions(jobs: JobAdmin, stream: str) -> None:
    with pytest.raises(ConfigurationError, match="confirm it"):
        await jobs.reset(confirm="other")
    would = await jobs.reset(dry_run=True)
    done = await jobs.reset(confirm=stream)

    assert (would.entries, would.delayed, would.dead) == (12, 12, 3)
    assert (done.entries, done.delayed, done.dead, done.stream) == (12, 12, 3, stream)
    assert await ids(jobs, "waiting") == []


async def test_keys_of_all_partitions_are_reported_together(aio: RawAsyncRedis, stream: str, names: list[str]) -> None:
    emitter = PartitionedEmitter(aio, stream, settings=ProcessorSettings())
    await emitter.emit_many([NewMessage("pay", key=f"key-{number % 6}") for number in range(18)])
    order = PartitionedKeyOrder(aio, stream)

    report = await order.report(limit=4)
    for name in names:  # the messages that have the turn are removed by another program
        await aio.xtrim(name, maxlen=0)
    stuck = await order.stuck()

    assert (report.holders, report.waiting, len(report.longest)) == (6, 12, 4)
    assert sorted(stuck) == [f"key-{number}" for number in range(6)]
    assert sorted(await order.release_stuck()) == sorted(stuck)
    assert await order.stuck() == []
