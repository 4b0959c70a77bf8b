"""All jobs that match a filter are changed in steps, and a killed run continues where it ended."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio

from conquiet.errors import ConfigurationError
from conquiet.management import BulkReport, JobAdmin, JobFilter
from conquiet.processor import Emitter, JobContext, NewMessage, Processor, ProcessorSettings
from conquiet.processor.keys import keys_of
from conquiet.processor.policy import LONGEST_MS
from conquiet.testing import wait_until_async

MANY = 250


@pytest.fixture
def jobs(aio: redis.asyncio.Redis, stream: str) -> JobAdmin:
    return JobAdmin(aio, stream)


async def _emit(aio: redis.asyncio.Redis, stream: str, event: str, count: int, delay_s: float | None = None) -> None:
    await Emitter(aio, stream).emit_many([NewMessage(event, delay_s=delay_s) for _ in range(count)])


@pytest.mark.parametrize(("phase", "delay_s"), [("delayed", 600.0), ("waiting", None)])
async def test_all_that_match_are_cancelled_and_no_other(
    aio: redis.asyncio.Redis, jobs: JobAdmin, stream: str, phase: str, delay_s: float | None
) -> None:
    await _emit(aio, stream, "remind", MANY, delay_s)
    await _emit(aio, stream, "pay", 20, delay_s)
    where = JobFilter(event="remind")

    would = await jobs.bulk("cancel", phase, where, dry_run=True)
    done = await jobs.bulk("cancel", phase, where)

    assert (would.matched, would.changed, would.done) == (MANY, 0, True)
    assert (done.matched, done.changed, done.done) == (MANY, MANY, True)
    left = await jobs.list(phase)
    assert [job.event for job in left.jobs] == ["pay"] * 20


async def test_messages_behind_others_of_their_key_are_cancelled_and_no_other(
    aio: redis.asyncio.Redis, jobs: JobAdmin, stream: str, redis_url: str
) -> None:
    """Every second message of each line, while others get their turn.

    Counted from the beginning of a line, each message that leaves it would hide another one.
    """
    emitter, keys = Emitter(aio, stream), keys_of(stream)
    sizes = {f"account-{number}": 1 + number * 9 for number in range(30)}
    for key, size in sizes.items():
        await emitter.emit_many([NewMessage("pay", key=key, id=f"{key}/first")])
        await emitter.emit_many(
            [NewMessage("remind" if n % 2 else "pay", key=key, id=f"{key}/{n}") for n in range(size)]
        )
    reminders = sum(size // 2 for size in sizes.values())
    where = JobFilter(event="remind")
    advanced: list[Any] = []

    def let_one_advance(_: BulkReport) -> None:
        with redis.Redis.from_url(redis_url) as raw:
            advanced.append(raw.lpop(keys.waiting("account-29")))

    would = await jobs.bulk("cancel", "behind", where, dry_run=True)
    done = await jobs.bulk("cancel", "behind", where, on_progress=let_one_advance)

    missed = sum(b'"remind"' in (raw or b"") for raw in advanced)
    assert (would.matched, would.changed, would.done) == (reminders, 0, True)
    assert (done.changed, done.done) == (reminders - missed, True)
    assert len(advanced) > 30
    assert {job.event for job in [one async for one in _all(jobs, "behind")]} == {"pay"}
    assert (await jobs.show("account-28/27")).phase == "cancelled"


async def _all(jobs: JobAdmin, phase: str) -> AsyncIterator[Any]:
    cursor = None
    while True:
        page = await jobs.list(phase, cursor=cursor, limit=500)
        for job in page.jobs:
            yield job
        if (cursor := page.cursor) is None:
            return


async def test_parked_jobs_are_cancelled_however_far_back_they_are(
    aio: redis.asyncio.Redis, jobs: JobAdmin, stream: str
) -> None:
    """More messages that do not match than one page reads are before them."""
    emitter, keys = Emitter(aio, stream), keys_of(stream)
    await emitter.emit_many([NewMessage("pay", id=f"old-{n}") for n in range(2_100)])
    await emitter.emit_many([NewMessage("pay", id=f"new-{n}") for n in range(150)])
    entries: Any = await aio.xrange(stream)
    await aio.rpush(keys.parked_event("pay"), *[fields[b"data"] for _, fields in entries])
    await aio.sadd(keys.parked, "pay")
    await aio.xtrim(stream, maxlen=0, approximate=False)

    where = JobFilter(id="new-149")
    would = await jobs.bulk("cancel", "parked", where, dry_run=True)
    one = await jobs.bulk("cancel", "parked", where)
    rest = await jobs.bulk("cancel", "parked", JobFilter(event="pay"), name="rest")

    assert (would.matched, would.scanned, would.done) == (1, 2_250, True)
    assert (one.changed, rest.changed) == (1, 2_249)
    assert await aio.llen(keys.parked_event("pay")) == 0


class _KilledError(Exception):
    """The operator's process ends here."""


async def test_a_killed_run_is_resumed_and_changes_no_job_twice(
    aio: redis.asyncio.Redis, jobs: JobAdmin, stream: str
) -> None:
    await _emit(aio, stream, "remind", MANY, 600)
    reports: list[BulkReport] = []

    def die_after_two(report: BulkReport) -> None:
        reports.append(report)
        if len(reports) == 2:
            raise _KilledError

    with pytest.raises(_KilledError):
        await jobs.bulk("cancel", "delayed", name="monday", on_progress=die_after_two)
    seen_by_another = await jobs.bulk_progress("monday")
    await _emit(aio, stream, "late", 5, 600)  # after it began: left alone
    done = await jobs.bulk("cancel", "delayed", name="monday")

    assert seen_by_another == reports[-1]
    assert 0 < reports[-1].changed < MANY
    assert (done.changed, done.done) == (MANY, True)
    assert await aio.zcard(keys_of(stream).delayed) == 5
    with pytest.raises(ConfigurationError, match="another action or filter"):
        await jobs.bulk("cancel", "delayed", JobFilter(event="pay"), name="monday")


async def test_a_limit_and_a_rate_hold(aio: redis.asyncio.Redis, jobs: JobAdmin, stream: str) -> None:
    await _emit(aio, stream, "remind", 30, 600)
    loop = asyncio.get_running_loop()

    began = loop.time()
    done = await jobs.bulk("run-now", "delayed", limit=10, rate_per_s=20)
    took_s = loop.time() - began

    assert (done.changed, await aio.xlen(stream)) == (10, 10)
    assert took_s >= 0.4


async def test_dead_jobs_are_retried_and_delayed_ones_rescheduled(
    aio: redis.asyncio.Redis, jobs: JobAdmin, stream: str
) -> None:
    processor = Processor(aio, [stream], concurrency=4, settings=ProcessorSettings())
    ran: list[str] = []

    @processor.handler("pay")
    async def pay(ctx: JobContext) -> None:
        ran.append(ctx.id)
        if len(ran) <= 5:
            raise LookupError

    async with processor:
        await processor.emit_many([NewMessage("pay") for _ in range(5)])
        await wait_until_async(lambda: _dead(aio, stream, 5))
        retried = await jobs.bulk("retry", "dead", JobFilter(error="LookupError"))
        await wait_until_async(lambda: len(ran) == 10)
    await _emit(aio, stream, "pay", 5, 600)
    moved = await jobs.bulk("reschedule", "delayed", delay_s=7_200)
    page = await jobs.list("delayed")

    assert (retried.changed, moved.changed) == (5, 5)
    assert len({job.due_ms for job in page.jobs}) == 1


async def test_an_action_that_a_phase_does_not_allow_is_refused(jobs: JobAdmin) -> None:
    for action, phase in (("run-now", "waiting"), ("retry", "delayed"), ("cancel", "dead")):
        with pytest.raises(ConfigurationError, match="is for jobs that are"):
            await jobs.bulk(action, phase)
    with pytest.raises(ConfigurationError, match="delay_s is for reschedule"):
        await jobs.bulk("reschedule", "delayed")


async def test_a_reset_asks_for_the_name_and_leaves_running_jobs(
    aio: redis.asyncio.Redis, jobs: JobAdmin, stream: str
) -> None:
    keys = keys_of(stream)
    await aio.xgroup_create(stream, "processor", "0", mkstream=True)
    await _emit(aio, stream, "pay", 600)
    await _emit(aio, stream, "pay", 700, 600)
    await aio.xadd(keys.dead, {"data": "{}"})
    running: Any = await aio.xreadgroup("processor", "me", {stream: ">"}, count=3)
    assert len(running[0][1]) == 3

    would = await jobs.reset(dry_run=True)
    for wrong in (None, "", "Orders"):
        with pytest.raises(ConfigurationError, match="confirm it by the stream's name"):
            await jobs.reset(confirm=wrong)
    done = await jobs.reset(confirm=stream)

    assert (would.entries, would.delayed, would.dead) == (597, 700, 1)
    assert (done.entries, done.delayed, done.dead) == (597, 700, 1)
    assert (await aio.xlen(stream), await aio.zcard(keys.delayed), await aio.xlen(keys.dead)) == (3, 0, 0)
    assert [job.phase for job in (await jobs.list("running")).jobs] == ["running"] * 3


async def _dead(aio: redis.asyncio.Redis, stream: str, count: int) -> bool:
    return int(await aio.xlen(keys_of(stream).dead)) == count


async def test_a_limit_holds_over_several_steps_and_a_resumed_run(
    aio: redis.asyncio.Redis, jobs: JobAdmin, stream: str
) -> None:
    await _emit(aio, stream, "remind", MANY)

    def die_after_one(_report: BulkReport) -> None:
        raise _KilledError

    with pytest.raises(_KilledError):
        await jobs.bulk("cancel", "waiting", name="some", limit=150, on_progress=die_after_one)
    done = await jobs.bulk("cancel", "waiting", name="some", limit=150)

    assert (done.matched, done.changed, done.done) == (150, 150, True)
    assert len((await jobs.list("waiting", limit=200)).jobs) == MANY - 150


async def test_a_run_leaves_alone_what_was_emitted_after_it_began(
    aio: redis.asyncio.Redis, jobs: JobAdmin, stream: str
) -> None:
    """The jobs at the end of the stream are met last: a run that takes them never ends while others emit."""
    await _emit(aio, stream, "remind", MANY)

    def die_after_one(_report: BulkReport) -> None:
        raise _KilledError

    with pytest.raises(_KilledError):
        await jobs.bulk("cancel", "waiting", name="monday", on_progress=die_after_one)
    await asyncio.sleep(0.005)  # the server's next millisecond
    await _emit(aio, stream, "late", 5)
    done = await jobs.bulk("cancel", "waiting", name="monday")

    assert (done.changed, done.done) == (MANY, True)
    assert [job.event for job in (await jobs.list("waiting")).jobs] == ["late"] * 5


async def test_an_unreadable_entry_neither_ends_a_run_nor_hides_a_job(
    aio: redis.asyncio.Redis, jobs: JobAdmin, stream: str
) -> None:
    """A foreign program or an older version has written into the keys of the stream: bytes, names and due times."""
    keys, odd = keys_of(stream), b"\xff\xfe"
    good = b'{"v":1,"key":"a","event":"pay","id":"%b","attempt":1,"emitted_ms":1,"data":{}}'
    await aio.xgroup_create(stream, "processor", "0", mkstream=True)
    await aio.xadd(stream, {odd: odd, b"more": b"fields"})
    await aio.xadd(stream, {"data": good % b"waiting"})
    await aio.zadd(keys.delayed, {odd: "inf", b'{"v":1}': "-inf", good % b"delayed": 2e12})
    await aio.sadd(keys.parked, odd, "pay")
    await aio.rpush(keys.parked_event("").encode() + odd, good % b"hidden")
    await aio.rpush(keys.parked_event("pay"), odd, good % b"parked", odd)
    await aio.zadd(keys.waiting_keys, {odd: 1, b"a": 3})
    await aio.rpush(keys.waiting("").encode() + odd, odd)
    await aio.rpush(keys.waiting("a"), odd, good % b"behind", odd)
    await aio.xadd(keys.dead, {odd: odd})

    done = {phase: await jobs.bulk("cancel", phase) for phase in ("waiting", "delayed", "parked", "behind")}
    retried = await jobs.bulk("retry", "dead")

    found = {phase: (one.scanned, one.matched, one.changed, one.refused, one.done) for phase, one in done.items()}
    # Nothing is removed from a list with a name that is no text.
    assert found == {
        "waiting": (2, 2, 2, 0, True),
        "delayed": (3, 3, 3, 0, True),
        "parked": (4, 4, 3, 1, True),
        "behind": (4, 4, 3, 1, True),
    }
    assert (retried.matched, retried.refused) == (1, 1)
    for message in (b"waiting", b"delayed", b"parked", b"behind"):
        assert (await jobs.show(message.decode())).phase == "cancelled"
    assert await aio.zrange(keys.waiting_keys, 0, -1) == [odd]


async def test_an_infinite_due_time_of_another_program_can_be_listed(
    aio: redis.asyncio.Redis, jobs: JobAdmin, stream: str
) -> None:
    await aio.zadd(keys_of(stream).delayed, {b"x": "inf", b"y": "-inf"})

    found = await jobs.list("delayed")

    assert [job.due_ms for job in found.jobs] == [0, LONGEST_MS]
