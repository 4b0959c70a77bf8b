"""On a Redis Cluster: commands follow their slot, are executed once, and are never repeated when in doubt."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from conquiet.config import QueueConfig
from conquiet.errors import QueueError
from conquiet.queue import RedisStreamsQueue
from conquiet.redis_transport.client import SyncClient, clone_async, clone_sync
from conquiet.redis_transport.cluster_connection import open_connection
from conquiet.redis_transport.redis_url import client_from_url
from conquiet.redis_transport.routing import slot_of
from conquiet.redis_transport.scripts import Script
from conquiet.testing import ClusterNode, FaultProxy, RedisClusterServer, wait_until

PUT = Script.from_source("put", "for i = 1, #KEYS do redis.call('RPUSH', KEYS[i], ARGV[1]) end return #KEYS")


@pytest.fixture
def client(redis_cluster: RedisClusterServer) -> Iterator[SyncClient]:
    made = client_from_url(SyncClient.from_url, redis_cluster.url)
    yield made
    made.close()


def values(client: SyncClient, stream: str) -> list[bytes]:
    entries: Any = client.xrange(stream)
    return [fields[b"data"] for _, fields in entries]


def test_a_queue_works_at_every_step_of_a_migration(redis_cluster: RedisClusterServer, client: SyncClient) -> None:
    with RedisStreamsQueue(client, QueueConfig("orders", "billing", "alice")) as queue:
        queue.enqueue({"n": -1}, idempotency_key="first")
        sent, seen = [-1], []
        for number, _ in enumerate(redis_cluster.moving_slot("orders")):
            queue.enqueue({"n": number})
            sent.append(number)
            (message,) = queue.read(100)
            assert queue.extend(message)
            queue.ack(message)
            seen.append(message.payload["n"])
        seen += [message.payload["n"] for message in queue.read(100, 100)]

    assert len(sent) >= 4
    assert seen == sent
    assert client.xlen("orders") == len(sent)


def test_a_step_on_keys_of_both_nodes_waits_for_the_migration(
    redis_cluster: RedisClusterServer, client: SyncClient
) -> None:
    clone = clone_sync(client)
    for key in ("{a}:1", "{a}:2"):
        clone.rpush(key, "before")
    steps = redis_cluster.moving_slot("{a}")
    assert next(steps) == "opened"
    next(steps)  # one of the two keys has moved

    replies: list[Any] = []
    thread = threading.Thread(
        target=lambda: replies.append(PUT.call_sync(clone, ["{a}:1", "{a}:2", "{a}:3"], ["x"], stream="{a}"))
    )
    thread.start()
    asked = redis_cluster.master_of("{a}")
    wait_until(lambda: _refusals(asked, "TRYAGAIN") > 0)
    assert replies == []
    for _ in steps:
        pass
    thread.join(30)

    assert replies == [3]
    assert [clone.llen(f"{{a}}:{n}") for n in (1, 2, 3)] == [2, 2, 1]
    clone.close()


def test_a_migration_that_never_ends_is_an_error_with_advice(redis_cluster: RedisClusterServer) -> None:
    given = client_from_url(SyncClient.from_url, redis_cluster.url)
    clone = clone_sync(given, socket_timeout_s=0.3)
    clone.rpush("{stuck}:1", "x")
    steps = redis_cluster.moving_slot("{stuck}")
    next(steps)

    with pytest.raises(QueueError, match=r"\(TRYAGAIN\)\. The migration of its slot has not ended") as caught:
        PUT.call_sync(clone, ["{stuck}:1", "{stuck}:2"], ["x"], stream="{stuck}")
    for _ in steps:
        pass
    clone.close()
    given.close()

    assert not caught.value.in_doubt


def _refusals(node: ClusterNode, code: str) -> int:
    lines = bytes(node.call("INFO", "errorstats") or b"").decode().splitlines()
    return sum(int(line.partition("count=")[2]) for line in lines if line.startswith(f"errorstat_{code}:"))


async def test_commands_of_many_slots_go_out_together_and_follow(redis_cluster: RedisClusterServer) -> None:
    given = redis.asyncio.RedisCluster.from_url(redis_cluster.node_url)
    clone: Any = clone_async(given)
    names = [f"list-{number}" for number in range(30)]
    await asyncio.gather(*(clone.rpush(name, "first") for name in names))
    moved = names[:4]
    for name in moved[:2]:
        await asyncio.to_thread(redis_cluster.move_slot, name)  # MOVED
    steps = [redis_cluster.moving_slot(name) for name in moved[2:]]
    for step in steps:
        assert await asyncio.to_thread(next, step) == "opened"
        await asyncio.to_thread(next, step)  # its key has moved: ASK
    async with clone.pipeline(transaction=False) as pipe:
        pipe.time()
        for name in names:
            pipe.rpush(name, "second")
        pipe.execute_command("RPUSH", "list-0")
        replies = await pipe.execute(raise_on_error=False)
    for step in steps:
        await asyncio.to_thread(list, step)
    lengths = [await clone.llen(name) for name in names]
    await clone.aclose()
    await given.aclose()

    assert len(replies[0]) == 2
    assert replies[1:-1] == lengths == [2] * 30
    assert isinstance(replies[-1], redis.ResponseError)


@contextlib.contextmanager
def behind_proxy(node: ClusterNode) -> Iterator[tuple[FaultProxy, Any]]:
    """A client of the cluster that reaches this node by a proxy."""
    with FaultProxy(node.host, node.port) as proxy:

        def remap(address: tuple[str, int]) -> tuple[str, int]:
            return (proxy.host, proxy.port) if address[1] == node.port else address

        client = redis.RedisCluster(host=node.host, port=node.port, address_remap=remap)
        yield proxy, client
        client.close()


@pytest.mark.spec("RS-005.3", "RS-005.16", "RS-008.2", "QC-009.6")
@pytest.mark.parametrize("call", ["enqueue", "script", "pipeline"])
def test_a_command_whose_reply_is_lost_is_not_repeated(redis_cluster: RedisClusterServer, call: str) -> None:
    node = redis_cluster.master_of("orders")
    with behind_proxy(node) as (proxy, given):
        clone: Any = clone_sync(given)
        with RedisStreamsQueue(given, QueueConfig("orders", "billing", "alice")) as queue:
            steps: dict[str, Callable[[], Any]] = {
                "enqueue": lambda: queue.enqueue({"n": 1}),
                "script": lambda: PUT.call_sync(clone, ["orders-list{orders}"], ["x"], stream="orders"),
                "pipeline": lambda: clone.execute_many([(("XADD", "orders", "*", "data", "1"), {})])[0],
            }
            node.call("SCRIPT", "LOAD", PUT.source)
            clone.exists("orders")  # has a connection
            proxy.drop_next_reply()
            try:
                lost = steps[call]()
            except QueueError as error:
                lost = error.__cause__ if error.in_doubt else error
        clone.close()

    assert isinstance(lost, redis.ConnectionError)
    raw = redis.RedisCluster.from_url(redis_cluster.node_url)
    assert raw.xlen("orders") + raw.llen("orders-list{orders}") == 1
    raw.close()


def test_an_unsent_command_is_sent_to_the_new_master(redis_cluster: RedisClusterServer, client: SyncClient) -> None:
    with RedisStreamsQueue(client, QueueConfig("orders", "billing", "alice")) as queue:
        queue.enqueue({"n": 1})
        redis_cluster.switch_master("orders")  # the old master is a replica now, and replies MOVED
        queue.enqueue({"n": 2})
        dead = redis_cluster.kill_master("orders")
        with contextlib.suppress(QueueError):
            queue.enqueue({"n": 3}, idempotency_key="three")  # the open connection is found broken
        queue.enqueue({"n": 3}, idempotency_key="three")
        found = [message.payload["n"] for message in queue.read(100, 10)]
        redis_cluster.revive(dead)

    assert found[-1] == 3
    assert found.count(3) == 1


def test_slots_are_those_of_the_server(redis_cluster: RedisClusterServer) -> None:
    node = redis_cluster.nodes[0]
    for name in ("orders", "{orders}:dead", "a{b}c{d}", "{}x", "{", "ä{ö}"):
        assert slot_of(name) == node.call("CLUSTER", "KEYSLOT", name)


def test_a_cluster_out_of_reach_is_named() -> None:
    client = client_from_url(SyncClient.from_url, "redis://127.0.0.1:1,127.0.0.1:2/0?cluster=true")
    connection = open_connection(client, socket_timeout_s=1.0)

    with pytest.raises(QueueError, match="was not sent: no connection to the server at 127") as caught:
        connection.call("XLEN", b"*2\r\n$4\r\nXLEN\r\n$6\r\norders\r\n", stream="orders")
    connection.close()
    client.close()

    assert not caught.value.in_doubt
