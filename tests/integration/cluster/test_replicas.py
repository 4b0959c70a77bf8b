"""Messages that count only once a replica has them, and the doctor's findings about replication."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis
import redis.asyncio

from conquiet.config import QueueConfig
from conquiet.errors import ConfigurationError, NotReplicatedError
from conquiet.management import RedisAdmin
from conquiet.management.doctor.redis import examine_redis
from conquiet.processor import NewMessage, Processor, ProcessorSettings, SyncEmitter
from conquiet.queue import RedisStreamsQueue, StreamProducer
from conquiet.testing import RedisClusterServer, wait_until_async
from conquiet.transactional import ToStream


@pytest.fixture
def raw(redis_cluster: RedisClusterServer) -> Iterator[redis.RedisCluster]:
    made = redis.RedisCluster.from_url(redis_cluster.node_url, protocol=2)
    yield made
    made.close()


async def test_a_message_confirmed_by_a_replica_survives_the_master(
    redis_cluster: RedisClusterServer, raw: redis.RedisCluster
) -> None:
    client = redis.asyncio.RedisCluster.from_url(redis_cluster.node_url)
    processor = Processor(client, ["orders"], settings=ProcessorSettings(replicas=1, replicas_timeout_s=5.0))
    with RedisStreamsQueue(raw, QueueConfig("orders", "billing", "alice")) as queue, SyncEmitter(raw, "orders") as sync:
        sent = [
            (await processor.emit("sell", {"n": 1})).entry_id,
            (await processor.emit("sell", {"n": 2}, id="two")).entry_id,
            *[one.entry_id for one in await processor.emit_many([NewMessage("sell", {"n": n}) for n in range(3)])],
            sync.emit("sell", {"n": 6}, replicas=1).entry_id,
            queue.enqueue({"n": 7}, replicas=1, replicas_timeout_s=5.0),
            *queue.enqueue_many([{"n": 8}, {"n": 9}], replicas=1, replicas_timeout_s=5.0),
            queue.enqueue({"n": 10}, idempotency_key="ten", replicas=1, replicas_timeout_s=5.0),
        ]
    dead = await asyncio.to_thread(redis_cluster.kill_master, "orders")
    entries: Any = raw.xrange("orders")
    kept = [entry_id.decode() for entry_id, _ in entries]
    await processor.close()
    await client.aclose()
    await asyncio.to_thread(redis_cluster.revive, dead)

    assert kept == sent


async def test_without_a_replica_the_error_says_what_is_where(
    redis_cluster: RedisClusterServer, raw: redis.RedisCluster
) -> None:
    client = redis.asyncio.RedisCluster.from_url(redis_cluster.node_url)
    # Before the pause: the node that the client queries for the slots may be the paused replica.
    await client.initialize()
    processor = Processor(client, ["orders"], settings=ProcessorSettings(replicas_timeout_s=0.5))
    replica = redis_cluster.replica_of(redis_cluster.master_of("orders"))
    target = ToStream(raw, "orders", replicas=1)
    with StreamProducer(raw, "orders") as producer, redis_cluster.pause_node(replica):
        calls: list[Callable[[], object]] = [
            lambda: producer.enqueue({"n": 1}, replicas=1, replicas_timeout_s=0.1),
            lambda: producer.enqueue({"n": 2}, idempotency_key="two", replicas=1, replicas_timeout_s=0.1),
            # There already, so nothing is written: it must not count as confirmed for that.
            lambda: producer.enqueue({"n": 2}, idempotency_key="two", replicas=1, replicas_timeout_s=0.1),
        ]
        for call in calls:
            with pytest.raises(
                NotReplicatedError, match=r"on stream 'orders' was written, but 0 of 1 replicas"
            ) as caught:
                call()
            assert (caught.value.in_doubt, caught.value.confirmed, caught.value.requested) == (True, 0, 1)
        with pytest.raises(NotReplicatedError):
            await processor.emit("sell", id="three", replicas=1)

    async def is_confirmed() -> bool:
        with suppress(NotReplicatedError):
            await processor.emit("sell", id="three", replicas=1)
            return True
        return False

    # Sent again once the replica is back: confirmed, and there once.
    await wait_until_async(is_confirmed)
    target.close()
    await processor.close()
    await client.aclose()

    assert raw.xlen("orders") == 3


@pytest.mark.parametrize("wrong", [-1, True, 1.5, "1"])
def test_a_wrong_number_of_replicas_is_refused(raw: redis.RedisCluster, wrong: Any) -> None:
    with StreamProducer(raw, "orders") as producer, pytest.raises(ConfigurationError, match="replicas must be"):
        producer.enqueue({}, replicas=wrong)


def test_the_doctor_reads_each_master_and_its_replication(redis_cluster: RedisClusterServer) -> None:
    with RedisAdmin.from_url(redis_cluster.url) as server:
        found = examine_redis(server)
        steps = redis_cluster.moving_slot("orders")
        next(steps)
        migrating = examine_redis(server)
        list(steps)

    notes = [one.what for one in found if one.check == "redis.replication"]
    assert len(notes) == 3
    assert all("min-replicas-to-write is 0" in note for note in notes)
    assert len([one for one in found if one.check == "redis.persistence"]) == 3
    assert not [one for one in found if one.check.startswith("redis.cluster")]
    assert [one.check for one in migrating if one.check.startswith("redis.cluster")] == ["redis.cluster.migration"]
