"""``in_doubt`` is false only where nothing can have happened: what was refused may be repeated."""

from collections.abc import Callable
from typing import Any, Protocol

import pytest
import redis

from conquiet.errors import QueueError
from conquiet.queue import RedisStreamsQueue
from conquiet.testing import FaultProxy


class MakeQueue(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> RedisStreamsQueue: ...


def refuse(raw: Any, key: str, kind: type[redis.ResponseError]) -> None:
    """Have the server refuse something else: what the caller is handling when it enqueues."""
    if kind is redis.exceptions.ReadOnlyError:
        raw.eval("return redis.error_reply('READONLY You can\\'t write against a read only replica.')", 0)
    raw.execute_command("LPUSH", key, "x")


@pytest.mark.parametrize("kind", [redis.ResponseError, redis.exceptions.ReadOnlyError])
def test_a_reply_lost_while_another_refusal_is_handled_is_in_doubt(
    make_queue: MakeQueue,
    connect: Any,
    redis_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    raw: Any,
    stream: str,
    kind: type[redis.ResponseError],
) -> None:
    """redis-py's error then has that refusal as its context, and the entry is there all the same."""
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
