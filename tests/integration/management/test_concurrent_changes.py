"""Changes by other processes between two steps of an operator's command."""

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from conquiet.management import PendingFilter, RedisAdmin, list_pending, list_streams, reclaim
from conquiet.queue import RedisStreamsQueue
from conquiet.redis_transport.commands import Word

MakeQueue = Callable[..., RedisStreamsQueue]


class Deleting(RedisAdmin):
    """Deletes a key between the scan that finds it and the first command about it."""

    victim: str | bytes = b""

    def require_stream(self, key: str | bytes) -> None:
        if self.victim:
            self.call("DEL", self.victim)
            self.victim = b""
        super().require_stream(key)


def test_a_stream_deleted_meanwhile_is_left_out(client: Redis, key_prefix: str) -> None:
    gone, stays = f"{key_prefix}a", f"{key_prefix}b"
    for key in (gone, stays):
        client.xadd(key, {"data": "{}"})

    with Deleting(client) as server:
        server.victim = gone
        found = list_streams(server, pattern=f"{key_prefix}*")

    assert [one.key for one in found.streams] == [stays]


class Overtaken(RedisAdmin):
    """Lets another process act between the listing of a reclaim and its claim."""

    meanwhile: Callable[[], object] | None = None

    def call(self, *words: Word, stream: str = "", group: str = "") -> Any:
        if words[0] in {"EVAL", "XCLAIM"} and self.meanwhile is not None:
            self.meanwhile()
            self.meanwhile = None
        return super().call(*words, stream=stream, group=group)


@pytest.mark.parametrize(
    "wanted", [PendingFilter(consumer="alice"), PendingFilter(min_deliveries=1), PendingFilter(min_idle_s=0.001)]
)
def test_reclaim_leaves_what_another_worker_claimed_meanwhile(
    client: Redis, make_queue: MakeQueue, wanted: PendingFilter
) -> None:
    """By XCLAIM with a delivery, by one without (JUSTID), and by a heartbeat of the owner: none is taken away."""
    queue = make_queue()
    key = queue.config.stream_key
    queue.enqueue_many([{"n": number} for number in range(4)])
    queue.read(100, 4)
    rows: Any = client.xpending_range(key, "billing", "-", "+", 10)
    first, second, third, fourth = (row["message_id"] for row in rows)
    client.xclaim(key, "billing", "alice", 0, [first, second, third, fourth], idle=60_000, justid=True)

    def act() -> None:
        client.xclaim(key, "billing", "bob", 0, [first])
        client.xclaim(key, "billing", "carol", 0, [second], idle=90_000, justid=True)
        client.xclaim(key, "billing", "alice", 0, [third], justid=True)

    with Overtaken(client) as server:
        server.meanwhile = act
        done = reclaim(server, key, "billing", wanted, owner="dave")

        assert done.ids == (fourth.decode(),)
        owners = [row.consumer for row in list_pending(server, key, "billing")]
        assert owners == ["bob", "carol", "alice", "dave"]
