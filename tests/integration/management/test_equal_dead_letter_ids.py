"""Partitions assign ids to their dead letters independently. Equal ones are shown, changed and deleted separately."""

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.equal_dead_letters import add_equal_dead_letters, left_in, messages_in
from tests.redis_clients import RawAsyncRedis, RawRedis

from conquiet.errors import ConfigurationError
from conquiet.management import JobAdmin, JobChange, RedisAdmin
from conquiet.management.bulk_runs import BulkRuns, RunAction, RunState
from conquiet.management.dead_letter_pages import DeadFilter, list_newest, sample_causes, show_dead_letter
from conquiet.processor import DeadLetters, PartitionedStream
from conquiet.processor.partitioned_dead_letters import PartitionedDeadLetters
from conquiet.processor.partitions import partition_name


@pytest.fixture
def raw(redis_url: str) -> Iterator[RawRedis]:
    with RawRedis.from_url(redis_url, protocol=2) as client:
        yield client


@pytest.fixture
async def aio(redis_url: str) -> AsyncIterator[RawAsyncRedis]:
    async with RawAsyncRedis.from_url(redis_url, protocol=2) as client:
        yield client


@pytest.fixture
def ids(raw: RawRedis, stream: str) -> list[str]:
    """The ids of nine dead letters, oldest first: three in each partition."""
    return add_equal_dead_letters(raw, stream, "7-0", "7-1", "8-0")


@pytest.fixture
def dead(aio: RawAsyncRedis, stream: str, ids: list[str]) -> PartitionedDeadLetters:
    return PartitionedDeadLetters(aio, stream)


@pytest.mark.parametrize("limit", range(1, 6))
def test_pages_from_the_newest_hold_each_once(server: RedisAdmin, stream: str, ids: list[str], limit: int) -> None:
    found: list[str] = []
    before: str | None = None
    while True:
        page = list_newest(server, stream.encode(), limit=limit, before=before)
        assert [one.record.id for one in page.items] == [f"of {one.id}" for one in page.items]
        found += [one.id for one in page.items]
        before = page.older
        if before is None:
            break

    assert found == ids[::-1]


@pytest.mark.parametrize("sample", range(1, 6))
def test_samples_of_causes_hold_each_once(server: RedisAdmin, stream: str, ids: list[str], sample: int) -> None:
    counts = {f"paid {index}": 0 for index in range(3)}
    before: str | None = None
    while True:
        found = sample_causes(server, stream.encode(), sample=sample, before=before)
        for one in found.causes:
            counts[one.event] += one.count
            assert one.event == f"paid {one.example_id.partition('.')[2] or 0}"
        before = found.older
        if before is None:
            break

    assert counts == {f"paid {index}": 3 for index in range(3)}


@pytest.mark.parametrize("limit", range(1, 6))
async def test_pages_from_the_oldest_hold_each_once(dead: PartitionedDeadLetters, ids: list[str], limit: int) -> None:
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await dead.list(cursor=cursor, limit=limit)
        assert len(page.items) <= limit
        assert [one.record.id for one in page.items] == [f"of {one.id}" for one in page.items]
        found += [one.id for one in page.items]
        cursor = page.cursor
        if cursor is None:
            break

    assert found == ids


async def test_each_is_shown_by_its_id(
    server: RedisAdmin, aio: RawAsyncRedis, stream: str, dead: PartitionedDeadLetters, ids: list[str]
) -> None:
    for dead_id in ids:
        found = [await dead.show(dead_id), show_dead_letter(server, stream.encode(), dead_id)]
        found += (await PartitionedStream(aio, stream).dead_letters().list(where=DeadFilter(id=dead_id))).items
        found += list_newest(server, stream.encode(), where=DeadFilter(id=dead_id)).items

        assert [(one.id, one.record.id, one.died_ms) for one in found if one is not None] == [
            (dead_id, f"of {dead_id}", int(dead_id[0]))
        ] * 4
    for unknown in ("7-0.3", "7-2.1", "7-2"):
        assert await dead.show(unknown) is None
        assert show_dead_letter(server, stream.encode(), unknown) is None


async def test_the_example_of_a_cause_has_this_cause(dead: PartitionedDeadLetters) -> None:
    causes = {cause.event: cause.example_id for cause in await dead.causes()}

    assert causes == {"paid 0": "7-0", "paid 1": "7-0.1", "paid 2": "7-0.2"}


@pytest.mark.parametrize("dead_id", ["7-0", "7-0.1", "7-0.2"])
@pytest.mark.parametrize("call", ["ids", "filter"])
async def test_one_is_discarded_alone(
    raw: RawRedis, stream: str, dead: PartitionedDeadLetters, dead_id: str, call: str
) -> None:
    where = DeadFilter(id=dead_id)

    assert await dead.discard(where, dry_run=True) == 1
    assert await (dead.discard_ids([dead_id]) if call == "ids" else dead.discard(where)) == 1

    assert sum(left_in(raw, stream)) == 8
    assert await dead.show(dead_id) is None


@pytest.mark.parametrize("dead_id", ["7-0", "7-0.1", "7-0.2"])
async def test_one_is_replayed_alone(raw: RawRedis, stream: str, dead: PartitionedDeadLetters, dead_id: str) -> None:
    would = await dead.replay(DeadFilter(id=dead_id), dry_run=True)
    report = await dead.replay(DeadFilter(id=dead_id))

    assert (would.matched, report.matched, report.replayed) == (1, 1, 1)
    assert sum(left_in(raw, stream)) == 8
    ((message,),) = [one for one in messages_in(raw, stream) if one]
    assert f'"of {dead_id}"'.encode() in message


async def test_discarding_some_of_equal_ids_spares_the_others(
    raw: RawRedis, stream: str, dead: PartitionedDeadLetters
) -> None:
    with pytest.raises(ConfigurationError, match=r"looks like 1763244000000-0, or 1763244000000-0\.3"):
        await dead.discard_ids(["7-0", "7-0.0"])
    assert left_in(raw, stream) == [3, 3, 3]

    assert await dead.discard_ids(["7-0.1", "7-1", "7-1.1", "8-0.2", "8-0.3"]) == 4
    assert left_in(raw, stream) == [2, 1, 2]


@pytest.mark.parametrize("action", [RunAction.DISCARD, RunAction.REPLAY])
async def test_an_action_on_selected_ones_spares_the_others(
    raw: RawRedis, aio: RawAsyncRedis, stream: str, ids: list[str], action: RunAction
) -> None:
    assert await BulkRuns(aio, "me").act_on(action, stream, ["7-0.1", "8-0"]) == 2

    assert left_in(raw, stream) == [2, 2, 3]
    assert [len(one) for one in messages_in(raw, stream)] == ([1, 1, 0] if action is RunAction.REPLAY else [0, 0, 0])


@pytest.mark.parametrize("action", [RunAction.DISCARD, RunAction.REPLAY])
async def test_a_bulk_run_of_one_id_spares_the_others(
    raw: RawRedis, aio: RawAsyncRedis, stream: str, ids: list[str], action: RunAction
) -> None:
    runs = BulkRuns(aio, "me")
    run = await runs.create(action=action, stream=stream, where=DeadFilter(id="7-0.2"), user="ann")
    counted = await runs.execute(run.id)
    await runs.confirm(run.id)
    done = await runs.execute(run.id)

    assert counted is not None
    assert done is not None
    assert (counted.matched, done.done, done.state) == (1, 1, RunState.DONE)
    assert left_in(raw, stream) == [3, 3, 2]


async def test_the_place_of_a_dead_job_names_one_dead_letter(
    raw: RawRedis, aio: RawAsyncRedis, stream: str, ids: list[str]
) -> None:
    jobs = JobAdmin(aio, stream)
    found = (await jobs.list("dead")).jobs
    assert sorted(job.place for job in found) == sorted(ids)
    assert [job.id for job in found] == [f"of {job.place}" for job in found]
    assert [place.place for place in (await jobs.show("of 7-1.2")).places] == ["7-1.2"]

    shown = await jobs.dead_letter("7-0.1")
    report = await jobs.edit_and_retry("7-0.1", {"iban": "new"})

    assert shown is not None
    assert shown.data == {"of": "7-0.1"}
    assert (report.change, report.id) == (JobChange.MOVED, "of 7-0.1")
    assert left_in(raw, stream) == [3, 2, 3]
    assert (await jobs.edit_and_retry("7-0.1")).change is JobChange.GONE
    assert (await jobs.edit_and_retry("7-0.3")).change is JobChange.GONE


async def test_dead_jobs_come_page_by_page_and_are_all_retried(
    raw: RawRedis, aio: RawAsyncRedis, stream: str, ids: list[str]
) -> None:
    jobs = JobAdmin(aio, stream)
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await jobs.list("dead", cursor=cursor, limit=1)
        found += [job.place for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            break

    assert sorted(found) == sorted(ids)
    assert (await jobs.bulk("retry", "dead")).changed == 9
    assert left_in(raw, stream) == [0, 0, 0]


async def test_the_stream_of_a_dead_job_knows_its_place(
    raw: RawRedis, aio: RawAsyncRedis, stream: str, ids: list[str]
) -> None:
    """A job reports its partition as its stream: the two together lead to its dead letter, too."""
    (job,) = [one for one in (await JobAdmin(aio, stream).list("dead")).jobs if one.place == "7-0.2"]
    partition = DeadLetters(aio, job.stream)

    assert job.stream == partition_name(stream, 2)
    assert [one.id for one in (await partition.list()).items] == ["7-0", "7-1", "8-0"]
    assert await partition.discard_ids(["7-0.1"]) == 0
    assert await partition.discard(DeadFilter(id="7-1.2")) == 1
    assert (await JobAdmin(aio, job.stream).edit_and_retry(job.place)).change is JobChange.MOVED
    assert left_in(raw, stream) == [3, 3, 1]


async def test_an_id_of_another_partition_does_not_exist_in_the_stream(
    raw: RawRedis, aio: RawAsyncRedis, stream: str, ids: list[str]
) -> None:
    dead = DeadLetters(aio, stream)

    assert await dead.show("7-0.1") is None
    assert await dead.discard_ids(["7-0.1"]) == 0
    assert await dead.discard(DeadFilter(id="7-0.1")) == 0
    assert (await dead.replay(DeadFilter(id="7-0.1"))).matched == 0
    assert left_in(raw, stream) == [3, 3, 3]
