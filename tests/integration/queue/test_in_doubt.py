"""``in_doubt`` is false only if nothing can have happened: a refused command may be repeated."""

from collections.abc import Callable
from typing import Any, Protocol

import pytest
import redis
from tests.integration.queue.conftest import Connect
from tests.redis_clients import RawRedis

from conquiet.errors import QueueError
from conquiet.queue import RedisStreamsQueue
from conquiet.testing import FaultProxy, RedisServer


class MakeQueue(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> RedisStreamsQueue: ...


def refuse(raw: RawRedis, key: str, kind: type[redis.ResponseError]) -> None:
    """Make the server refuse another command, which the caller handles while it enqueues."""
    if kind is redis.exceptions.ReadOnlyError:
        raw.eval("return redis.error_reply('READONLY You can\\'t write against a read only replica.')", 0)
    raw.execute_command("LPUSH", key, "x")


@pytest.mark.parametrize("kind", [redis.ResponseError, redis.exceptions.ReadOnlyError])
def test_a_reply_lost_while_another_refusal_is_handled_is_in_doubt(
    make_queue: MakeQueue,
    connect: Connect,
    redis_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    raw: RawRedis,
    stream: str,
    kind: type[redis.ResponseError],
) -> None:
    """redis-py's error then has that refusal as its context, although the entry was added."""
    proxy = fault_proxy(redis_url)
    queue = make_queue(client=connect(proxy.url_for(redis_url)))
    try:
        refuse(raw, stream, kind)
    except kind:
        proxy.drop_next_reply(b"XADD")
        with pytest.raises(QueueError, match="may have taken effect") as caught:
            queue.enqueue({"n": 1})

    assert caught.value.in_doubt
    assert raw.xlen(stream) == 1


@pytest.mark.parametrize("rights", [("-multi",), ("-exec",), ("-multi", "-exec", "-discard")])
def test_a_batch_needs_no_right_to_transactions(
    private_redis: Callable[..., RedisServer], connect: Connect, make_queue: MakeQueue, rights: tuple[str, ...]
) -> None:
    """If MULTI were refused and the rest sent, every entry would be added while the call reports that none is."""
    server = private_redis()
    raw = connect(server.url)
    raw.acl_setuser("app", enabled=True, nopass=True, keys=["*"], commands=["+@all", *rights])
    queue = make_queue(client=connect(server.url, username="app", password="-"))

    ids = queue.enqueue_many([{"n": n} for n in range(3)])

    assert [entry_id.decode() for entry_id, _ in raw.xrange(queue.config.stream_key)] == ids


@pytest.mark.parametrize("forbidden", ["-eval", "-xadd"])
def test_a_batch_without_the_right_to_eval_adds_nothing(
    private_redis: Callable[..., RedisServer], connect: Connect, make_queue: MakeQueue, forbidden: str
) -> None:
    server = private_redis()
    raw = connect(server.url)
    raw.acl_setuser("app", enabled=True, nopass=True, keys=["*"], commands=["+@all", forbidden])
    queue = make_queue(client=connect(server.url, username="app", password="-"))

    with pytest.raises(QueueError, match=r"EVAL .* was refused by the server") as caught:
        queue.enqueue_many([{"n": n} for n in range(3)])

    assert not caught.value.in_doubt
    assert ("ACL SETUSER" in str(caught.value)) == (forbidden == "-eval")
    assert raw.xlen(queue.config.stream_key) == 0


def test_a_mark_that_is_refused_leaves_no_entry_behind(
    private_redis: Callable[..., RedisServer], connect: Connect, make_queue: MakeQueue
) -> None:
    """An entry without its mark would be added once more by every repeated call."""
    server = private_redis()
    raw = connect(server.url)
    raw.acl_setuser("app", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-set"])
    queue = make_queue(client=connect(server.url, username="app", password="-"))
    for _ in range(2):
        with pytest.raises(QueueError) as caught:
            queue.enqueue({"n": 1}, idempotency_key="k")
        assert not caught.value.in_doubt
    assert raw.xlen(queue.config.stream_key) == 0

    raw.acl_setuser("app", commands=["+set"])
    first = queue.enqueue({"n": 1}, idempotency_key="k")

    assert queue.enqueue({"n": 1}, idempotency_key="k") == first
    assert raw.xlen(queue.config.stream_key) == 1


def test_an_entry_that_is_refused_leaves_its_key_free(queue: RedisStreamsQueue, raw: RawRedis, stream: str) -> None:
    raw.delete(stream)
    raw.set(stream, "not a stream")
    with pytest.raises(QueueError, match="WRONGTYPE") as caught:
        queue.enqueue({"n": 1}, idempotency_key="k")
    assert not caught.value.in_doubt
    raw.delete(stream)

    message_id = queue.enqueue({"n": 2}, idempotency_key="k")

    assert [entry_id.decode() for entry_id, _ in raw.xrange(stream)] == [message_id]
