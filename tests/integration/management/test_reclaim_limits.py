"""A reclaim takes the entries that were listed, in their listed state, and no others."""

from collections.abc import Callable

from redis import Redis

from conquiet.management import PendingFilter, RedisAdmin, list_pending, reclaim
from conquiet.management.pending import RECLAIM
from conquiet.queue import RedisStreamsQueue


def test_a_reclaim_takes_only_what_it_saw(
    server: RedisAdmin, client: Redis, make_queue: Callable[..., RedisStreamsQueue]
) -> None:
    queue = make_queue()
    queue.enqueue_many([{"n": number} for number in range(3)])
    first, second, third = queue.read(100, 3)
    stream = queue.config.stream_key
    once = PendingFilter(min_deliveries=1)
    assert len(list_pending(server, stream, "billing", once)) == 3, "at least once, and not more often"

    delivered_again = server.call("EVAL", RECLAIM, 1, stream, "billing", "bob", "", "", first.id, "alice", 0, 2)
    assert delivered_again == [], "another delivery came since it was looked at"

    client.xdel(stream, second.id)
    would = reclaim(server, stream, "billing", once, owner="bob", dry_run=True)
    assert would.ids == (first.id, third.id), "nothing is left of the other one"

    reclaim(server, stream, "billing", once, owner="bob")
    assert all(row.idle_s < 3_600 for row in list_pending(server, stream, "billing")), "its new owner's, and fresh"
