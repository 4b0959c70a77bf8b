"""One stream over the masters of a Redis Cluster: read, moved and seen as one."""

import asyncio
import json
from collections import Counter, defaultdict
from typing import Any

import redis.asyncio
from typer.testing import CliRunner

from conquiet.cli.app import app as command
from conquiet.core.backoff import Backoff
from conquiet.management import RedisAdmin, describe_stream, list_streams, trim
from conquiet.management.fleet import StreamDirectory, read_fleet
from conquiet.processor import JobContext, NewMessage, PartitionedProcessor, ProcessorSettings
from conquiet.processor.partitions import partition_name
from conquiet.runtime import RuntimeSettings
from conquiet.testing import RedisClusterServer, wait_until_async

PARTITIONS = 6


def numbered(n: int) -> NewMessage:
    return NewMessage("pay", {"n": n}, key=f"k{n % 5}" if n % 2 else None)


async def test_one_stream_uses_all_masters_while_slots_move(redis_cluster: RedisClusterServer) -> None:
    client: Any = redis.asyncio.RedisCluster.from_url(redis_cluster.node_url)
    settings = ProcessorSettings(settle_backoff=Backoff(base_s=0.02, cap_s=0.2), settle_attempts=100)
    runtime = RuntimeSettings(claim_idle_ms=2_000, reconnect=Backoff(base_s=0.02, cap_s=0.2), max_reconnects=1_000)
    worker = PartitionedProcessor(
        client, "orders", partitions=PARTITIONS, concurrency=8, settings=settings, runtime=runtime
    )
    by_key: dict[str, list[int]] = defaultdict(list)
    done: Counter[int] = Counter()

    @worker.handler("pay")
    async def pay(ctx: JobContext) -> None:
        done[ctx.data["n"]] += 1
        if ctx.key is not None:
            by_key[ctx.key].append(ctx.data["n"])

    names = [partition_name("orders", index) for index in range(PARTITIONS)]
    async with worker:
        for first in range(0, 90, 30):
            moving = asyncio.create_task(asyncio.to_thread(redis_cluster.move_slot, names[first // 30]))
            messages = [
                NewMessage("pay", {"n": n}, key=f"k{n % 5}" if n % 2 else None) for n in range(first, first + 30)
            ]
            sent = await worker.emit_many(messages, replicas=1)
            await moving
        await wait_until_async(lambda: len(done) == 90)
        assert {one.stream for one in sent} == set(names)
        later = await worker.emit_many([NewMessage("pay", {"n": 0}, delay_s=600) for _ in range(2 * PARTITIONS)])

    with RedisAdmin.from_url(redis_cluster.url) as server:
        report = describe_stream(server, "orders")
        listed = list_streams(server)
        directory = StreamDirectory()
        while not directory.complete:
            directory.advance(server)
        (snapshot,) = read_fleet(server, directory.keys())
        trimmed = trim(server, "orders")
    commands = (["inspect", "orders"], ["jobs", "list", "orders", "--phase", "delayed"], ["keys", "orders"])
    shown, delayed, keys = [
        await asyncio.to_thread(CliRunner().invoke, command, [*words, "--json", "--redis-url", redis_cluster.url])
        for words in commands
    ]
    await client.aclose()

    assert len({redis_cluster.master_of(name).port for name in names}) == 3
    assert set(done.values()) == {1}
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert (report.partitions, [one.pending for one in report.groups]) == (PARTITIONS, [0])
    assert [one.key for one in listed.streams] == ["orders"]
    assert (snapshot.partitions, snapshot.added, snapshot.length) == (PARTITIONS, 90, report.length)
    assert trimmed.length <= report.length
    assert json.loads(shown.output)["partitions"] == PARTITIONS
    assert {job["id"] for job in json.loads(delayed.output)["jobs"]} == {one.id for one in later}
    assert json.loads(keys.output) | {"longest": []} == {
        "holders": 0, "waiting": 0, "group": "processor", "longest": [], "stuck": []
    }  # fmt: skip
