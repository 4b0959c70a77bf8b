"""An interrupted call closes its connection: its reply must never be read for the next command.

redis-py closes a connection that lost its reply during the read. conquiet handles everything else: a signal handler
that raises after the command was sent, or between two replies of a pipeline.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Protocol

import pytest
import redis
from tests.integration.queue.conftest import Connect
from tests.redis_clients import RawRedis

from conquiet.errors import QueueError
from conquiet.queue import RedisStreamsQueue
from conquiet.testing import FaultProxy, wait_until

NAME = "broken-off"


class MakeQueue(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> RedisStreamsQueue: ...


class Interruptible(redis.Connection):
    """Raises in place of a reply on request, as a signal handler may: the reply stays unread."""

    replies_left: ClassVar[float] = math.inf

    def read_response(self, *args: Any, **options: Any) -> Any:
        if Interruptible.replies_left == 0:
            Interruptible.replies_left = math.inf
            raise KeyboardInterrupt
        Interruptible.replies_left -= 1
        return super().read_response(*args, **options)


@pytest.fixture
def interruptible(make_queue: MakeQueue, redis_url: str) -> Iterator[RedisStreamsQueue]:
    pool = redis.ConnectionPool.from_url(redis_url, connection_class=Interruptible, client_name=NAME)
    yield make_queue(client=redis.Redis(connection_pool=pool))
    Interruptible.replies_left = math.inf
    pool.disconnect()


def connections(raw: RawRedis) -> set[str]:
    return {one["id"] for one in raw.client_list() if one["name"] == NAME}


def stored(raw: RawRedis, queue: RedisStreamsQueue, message_id: str) -> list[Any]:
    return [fields for _, fields in raw.xrange(queue.config.stream_key, message_id, message_id)]


CALLS: dict[str, tuple[int, Callable[[RedisStreamsQueue], object]]] = {
    "add": (0, lambda queue: queue.enqueue({"n": 1})),
    "read": (0, lambda queue: queue.read(100)),
    "ack": (0, lambda queue: queue.ack_id("1-1")),
    "batch": (0, lambda queue: queue.enqueue_many([{"n": 1}, {"n": 1}])),
    "pipeline, first reply": (0, lambda queue: queue._deleted_among({"1-1", "2-1"})),
    "pipeline, last reply": (1, lambda queue: queue._deleted_among({"1-1", "2-1"})),
    "backlog, third command": (2, lambda queue: queue.backlog()),
}


@pytest.mark.parametrize("what", CALLS)
def test_the_reply_to_an_interrupted_call_is_not_read_by_the_next(
    interruptible: RedisStreamsQueue, raw: RawRedis, what: str
) -> None:
    replies, call = CALLS[what]
    before = connections(raw)
    Interruptible.replies_left = replies

    with pytest.raises(KeyboardInterrupt):
        call(interruptible)
    message_id = interruptible.enqueue({"n": 2})
    messages = interruptible.read(100, 10)

    assert stored(raw, interruptible, message_id) == [{b"data": b'{"n":2}'}]
    assert messages[-1].id == message_id
    wait_until(lambda: not before & connections(raw), message="the old connection's end")


@pytest.mark.parametrize("what", ["add", "read", "ack", "batch"])
def test_a_late_reply_is_not_read_by_the_next_call(
    make_queue: MakeQueue,
    connect: Connect,
    redis_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    monkeypatch: pytest.MonkeyPatch,
    raw: RawRedis,
    what: str,
) -> None:
    monkeypatch.setattr("conquiet.queue.redis_streams.LONGEST_SLICE_MS", 100)
    proxy = fault_proxy(redis_url)
    queue = make_queue(client=connect(proxy.url_for(redis_url), client_name=NAME), command_timeout_s=0.7)
    before = connections(raw)
    proxy.stall_next_reply()

    with pytest.raises(QueueError) as caught:
        CALLS[what][1](queue)
    proxy.resume()
    message_id = queue.enqueue({"n": 2})

    assert caught.value.in_doubt
    assert stored(raw, queue, message_id) == [{b"data": b'{"n":2}'}]
    wait_until(lambda: not before & connections(raw), message="the old connection's end")
