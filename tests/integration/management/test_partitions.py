"""Operators see the partitions of a stream as one stream."""

from typing import Any

import pytest
import redis.asyncio
from redis import Redis

from conquiet.management import (
    PendingFilter,
    RedisAdmin,
    describe_stream,
    list_pending,
    list_streams,
    reclaim,
    remove_consumer,
    trim,
)
from conquiet.management.dead_letter_pages import list_newest, sample_causes, show_dead_letter
from conquiet.management.fleet import StreamDirectory, read_fleet
from conquiet.management.pauses import pause_stream, resume_stream
from conquiet.processor import PartitionedEmitter, PartitionedStream
from conquiet.processor.dead_letter_record import DeadRecord, encode_record
from conquiet.processor.keys import keys_of
from conquiet.processor.partitioned_dead_letters import PartitionedDeadLetters
from conquiet.processor.partitions import partition_name

PARTITIONS = 3
GROUP = "billing"


@pytest.fixture
def stream(key_prefix: str) -> str:
    return f"{key_prefix}orders"


@pytest.fixture
async def fill(redis_url: str, stream: str) -> list[str]:
    """Make three partitions with four entries, two of them pending, and two dead letters each. Returns their keys."""
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        await PartitionedStream(client, stream).grow(PARTITIONS)
        names = [partition_name(stream, index) for index in range(PARTITIONS)]
        for name in names:
            await client.xgroup_create(name, GROUP, id="0", mkstream=True)
            for number in range(4):
                await client.xadd(name, {"n": number})
            await client.xreadgroup(GROUP, "alice", {name: ">"}, count=2)
            for number in range(2):
                record = DeadRecord(reason="rejected", id=f"{name}-{number}", entry_id="1-1", group=GROUP, event="pay")
                await client.xadd(keys_of(name).dead, {"record": encode_record(record)})
    return names


def test_one_report_has_the_figures_of_all_partitions(server: RedisAdmin, stream: str, fill: list[str]) -> None:
    found = describe_stream(server, stream)

    assert (found.key, found.partitions, found.length, found.dead_letters) == (stream, 3, 12, 6)
    (group,) = found.groups
    assert (group.name, group.lag, group.pending) == (GROUP, 6, 6)
    assert [(one.name, one.pending) for one in group.consumers] == [("alice", 6)]


def test_the_list_has_one_line_for_the_stream(
    server: RedisAdmin, key_prefix: str, stream: str, fill: list[str]
) -> None:
    found = list_streams(server, pattern=f"*{key_prefix}*")

    assert [(one.key, one.length) for one in found.streams] == [(stream, 12)]


def test_a_key_that_only_looks_like_a_partition_is_listed(server: RedisAdmin, client: Redis, key_prefix: str) -> None:
    client.xadd(f"{{{key_prefix}plain:7}}", {"n": 1})

    found = list_streams(server, pattern=f"*{key_prefix}*")

    assert [one.key for one in found.streams] == [f"{{{key_prefix}plain:7}}"]


def test_pending_entries_of_all_partitions_are_listed_and_reclaimed(
    server: RedisAdmin, client: Redis, stream: str, fill: list[str]
) -> None:
    everything = PendingFilter(consumer="alice")

    assert len(list_pending(server, stream, GROUP)) == 6
    assert len(list_pending(server, stream, GROUP, PendingFilter(limit=4))) == 4
    assert len(reclaim(server, stream, GROUP, PendingFilter(consumer="alice", limit=5), dry_run=True).ids) == 5
    assert len(reclaim(server, stream, GROUP, everything, owner="bob").ids) == 6
    assert [client.xpending(name, GROUP)["consumers"] for name in fill] == [[{"name": b"bob", "pending": 2}]] * 3


def test_a_consumer_is_removed_from_all_partitions_it_reads(
    server: RedisAdmin, client: Redis, stream: str, fill: list[str]
) -> None:
    client.xgroup_delconsumer(fill[1], GROUP, "alice")

    done = remove_consumer(server, stream, GROUP, "alice", new_owner="bob", min_idle_s=0, force=True)

    assert done.transferred == 4
    assert [[one["name"] for one in client.xinfo_consumers(name, GROUP)] for name in fill] == [[b"bob"], [], [b"bob"]]


def test_a_trim_goes_through_all_partitions(server: RedisAdmin, client: Redis, stream: str, fill: list[str]) -> None:
    for name in fill:
        entries: Any = client.xrange(name, count=2)
        client.xack(name, GROUP, *(entry for entry, _ in entries))

    assert trim(server, stream, dry_run=True).length == 12
    done = trim(server, stream)

    assert (done.removed, done.length) == (3, 9)  # the entry that was delivered last stays
    assert [client.xlen(name) for name in fill] == [3, 3, 3]


async def test_a_pause_holds_in_all_partitions(
    redis_url: str, server: RedisAdmin, stream: str, fill: list[str]
) -> None:
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        assert await pause_stream(client, stream)
        assert [await client.hkeys(f"{keys_of(name).base}:paused") for name in fill] == [[b"*"]] * 3
        assert describe_stream(server, stream).paused == ("*",)
        assert await resume_stream(client, stream)
        assert not await resume_stream(client, stream)


async def test_dead_letters_come_page_by_page_from_all_partitions(redis_url: str, stream: str, fill: list[str]) -> None:
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        dead = PartitionedDeadLetters(client, stream)
        found: list[Any] = []
        cursor: str | None = None
        while True:
            page = await dead.list(cursor=cursor, limit=2)
            found += page.items
            cursor = page.cursor
            if cursor is None:
                break

        assert sorted(one.record.id for one in found) == sorted(f"{name}-{n}" for name in fill for n in range(2))
        assert [one.died_ms for one in found] == sorted(one.died_ms for one in found)
        assert [(cause.event, cause.count) for cause in await dead.causes()] == [("pay", 6)]
        assert await dead.count() == 6


def test_the_pages_of_dead_letters_are_of_all_partitions(server: RedisAdmin, stream: str, fill: list[str]) -> None:
    page = list_newest(server, stream.encode(), limit=4)
    rest = list_newest(server, stream.encode(), limit=4, before=page.older)

    assert page.total == 6
    assert [one.died_ms for one in page.items] == sorted((one.died_ms for one in page.items), reverse=True)
    assert len({one.record.id for one in (*page.items, *rest.items)}) == 6
    assert show_dead_letter(server, stream.encode(), page.items[0].id) is not None
    assert sample_causes(server, stream.encode()).causes[0].count == 6


def test_the_fleet_has_one_stream(server: RedisAdmin, stream: str, key_prefix: str, fill: list[str]) -> None:
    directory = StreamDirectory()
    while not directory.complete:
        directory.advance(server)
    known = directory.keys()
    keys = [key for key in known if key_prefix.encode() in key]

    (found,) = read_fleet(server, keys)

    assert (found.key, found.partitions, found.length, found.dead, found.pending) == (stream, 3, 12, 6, 6)
    assert (found.lag, found.added, found.done) == (6, 12, 0)
    assert [(one.name, one.consumers) for one in found.groups] == [(GROUP, 1)]


async def test_emitters_without_asyncio_use_all_partitions(redis_url: str, client: Redis, stream: str) -> None:
    from conquiet.processor import NewMessage, SyncPartitionedEmitter
    from conquiet.processor.partitions import partition_of

    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as own:
        await PartitionedStream(own, stream).grow(PARTITIONS)
        with SyncPartitionedEmitter(client, stream) as emitter:
            sent = emitter.emit_many([NewMessage("pay") for _ in range(PARTITIONS * 2)])
            keyed = [emitter.emit("pay", key=f"k{number}") for number in range(8)]
            await PartitionedStream(own, stream).grow(PARTITIONS * 2)
            # It has not read the new number: the partitions send the keys on that have moved and are free.
            after = [emitter.emit("pay", key=f"new{number}") for number in range(20)]
        again = await PartitionedEmitter(own, stream).emit("pay", key="new3")

    assert sorted(one.stream for one in sent) == sorted(partition_name(stream, n) for n in [*range(PARTITIONS)] * 2)
    assert [one.stream for one in keyed] == [partition_name(stream, partition_of(f"k{n}", 3)) for n in range(8)]
    assert [one.stream for one in after] == [partition_name(stream, partition_of(f"new{n}", 6)) for n in range(20)]
    assert (again.stream, again.ahead) == (after[3].stream, 1)
