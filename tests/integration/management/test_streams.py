"""Views and changes of an operator on a real server."""

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from conquiet.errors import (
    ConfigurationError,
    NoSuchStreamError,
    OperatorError,
    PayloadError,
    QueueError,
    WrongKeyTypeError,
)
from conquiet.management import (
    PendingFilter,
    RedisAdmin,
    describe_stream,
    enqueue_all,
    list_pending,
    list_streams,
    reclaim,
    remove_consumer,
    trim,
)
from conquiet.management.pending import RECLAIMED
from conquiet.queue import RedisStreamsQueue
from conquiet.testing import FaultProxy, wait_until

MakeQueue = Callable[..., RedisStreamsQueue]


def filled(make_queue: MakeQueue, count: int = 10, taken: int = 4, consumer: str = "alice") -> RedisStreamsQueue:
    queue = make_queue(consumer=consumer)
    queue.enqueue_many([{"n": number} for number in range(count)])
    if taken:
        queue.read(100, taken)
    return queue


def counts(server: RedisAdmin, queue: RedisStreamsQueue) -> dict[str, int]:
    group = describe_stream(server, queue.config.stream_key).groups[0]
    return {consumer.name: consumer.pending for consumer in group.consumers}


# ---------------------------------------------------------------- looking
def test_a_stream_is_described_with_its_groups_and_consumers(server: RedisAdmin, make_queue: MakeQueue) -> None:
    queue = filled(make_queue)

    facts = describe_stream(server, queue.config.stream_key)

    (group,) = facts.groups
    assert (facts.length, group.lag, group.pending) == (10, 6, 4)
    assert group.oldest_age_s is not None
    assert [(one.name, one.pending, one.alive) for one in group.consumers] == [("alice", 4, True)]
    assert facts.as_dict()["groups"][0]["consumers"][0]["name"] == "alice"


def test_keys_that_the_processor_stores_are_shown_with_their_stream(
    server: RedisAdmin, client: Redis, make_queue: MakeQueue
) -> None:
    key = filled(make_queue, taken=0).config.stream_key
    client.zadd(f"{{{key}}}:delayed", {"later": 1})
    client.xadd(f"{{{key}}}:dead", {"data": "{}"})
    client.hset(f"{{{key}}}:paused", "*", "1")

    (facts,) = list_streams(server, pattern=f"*{key}*").streams

    assert (facts.delayed, facts.dead_letters, facts.paused) == (1, 1, ("*",))


def test_listing_is_bounded_and_says_so(server: RedisAdmin, client: Redis, key_prefix: str) -> None:
    for number in range(5):
        client.xadd(f"{key_prefix}s{number}", {"data": "{}"})
    client.set(f"{key_prefix}other", "not a stream")

    some = list_streams(server, pattern=f"{key_prefix}*", limit=3)
    everything = list_streams(server, pattern=f"{key_prefix}*")

    assert (len(some.streams), some.complete) == (3, False)
    assert (len(everything.streams), everything.complete) == (5, True)


def test_looking_never_uses_keys(server: RedisAdmin, client: Redis, make_queue: MakeQueue) -> None:
    """KEYS stops a busy server for seconds."""
    queue = filled(make_queue)
    client.config_resetstat()

    list_streams(server)
    list_pending(server, queue.config.stream_key, "billing")

    assert "cmdstat_keys" not in client.info("commandstats")


def test_a_missing_stream_and_another_type_are_different_errors(
    server: RedisAdmin, client: Redis, key_prefix: str
) -> None:
    client.lpush(f"{key_prefix}list", "x")

    with pytest.raises(NoSuchStreamError, match="there is no stream"):
        describe_stream(server, f"{key_prefix}nothing")
    with pytest.raises(WrongKeyTypeError, match="holds a list, not a stream"):
        describe_stream(server, f"{key_prefix}list")


# ---------------------------------------------------------------- pending and reclaim
def test_pending_lists_owner_deliveries_and_trimmed_entries(
    server: RedisAdmin, newer: RedisAdmin, client: Redis, make_queue: MakeQueue
) -> None:
    queue = filled(make_queue, taken=3)
    found: Any = client.xrange(queue.config.stream_key, count=1)
    client.xdel(queue.config.stream_key, found[0][0])

    def alice_is_dead() -> bool:
        rows = list_pending(newer, queue.config.stream_key, "billing", alive_s=0.02)
        return all(row.owner == "dead" for row in rows)

    wait_until(alice_is_dead)
    rows = list_pending(server, queue.config.stream_key, "billing")
    assert [(row.consumer, row.deliveries, row.trimmed) for row in rows] == [
        ("alice", 1, True),
        ("alice", 1, False),
        ("alice", 1, False),
    ]
    with pytest.raises(NoSuchStreamError, match="there is: billing"):
        list_pending(server, queue.config.stream_key, "missing")


def test_pending_can_be_filtered_and_is_paged(server: RedisAdmin, make_queue: MakeQueue) -> None:
    queue = filled(make_queue, count=1_200, taken=1_100)
    filled(make_queue, count=0, taken=5, consumer="bob")

    of_bob = list_pending(server, queue.config.stream_key, "billing", PendingFilter(consumer="bob"))
    everything = list_pending(server, queue.config.stream_key, "billing", PendingFilter(limit=5_000))
    often = list_pending(server, queue.config.stream_key, "billing", PendingFilter(min_deliveries=2))

    assert len(of_bob) == 5
    assert len(everything) == 1_105
    assert often == []


def test_reclaim_without_a_filter_is_refused(server: RedisAdmin, make_queue: MakeQueue) -> None:
    queue = filled(make_queue)

    with pytest.raises(ConfigurationError, match="would claim from live consumers"):
        reclaim(server, queue.config.stream_key, "billing", PendingFilter())


def test_a_dry_run_of_reclaim_changes_nothing(server: RedisAdmin, make_queue: MakeQueue) -> None:
    queue = filled(make_queue)

    would = reclaim(server, queue.config.stream_key, "billing", PendingFilter(consumer="alice"), dry_run=True)

    assert len(would.ids) == 4
    assert counts(server, queue) == {"alice": 4}


def test_reclaimed_entries_are_stale_at_once_and_keep_their_delivery_count(
    server: RedisAdmin, make_queue: MakeQueue
) -> None:
    queue = filled(make_queue)

    done = reclaim(server, queue.config.stream_key, "billing", PendingFilter(consumer="alice"))
    batch = make_queue(consumer="bob").claim_stale(60_000, 10)

    assert len(done.ids) == 4
    assert [message.delivery_count for message in batch] == [2, 2, 2, 2]


def test_entries_reclaimed_for_a_consumer_belong_to_it(server: RedisAdmin, make_queue: MakeQueue) -> None:
    queue = filled(make_queue)

    reclaim(server, queue.config.stream_key, "billing", PendingFilter(consumer="alice"), owner="bob")

    assert len(make_queue(consumer="bob").recover_own()) == 4
    assert counts(server, queue)["alice"] == 0


def test_reclaim_leaves_alone_what_was_touched_meanwhile(server: RedisAdmin, make_queue: MakeQueue) -> None:
    queue = filled(make_queue)

    done = reclaim(server, queue.config.stream_key, "billing", PendingFilter(min_idle_s=60))

    assert done.ids == ()
    assert counts(server, queue) == {"alice": 4}


def test_a_reclaim_of_many_takes_all_of_them(server: RedisAdmin, make_queue: MakeQueue) -> None:
    queue = filled(make_queue, count=2_200, taken=2_100)

    done = reclaim(server, queue.config.stream_key, "billing", PendingFilter(consumer="alice", limit=5_000))

    assert len(set(done.ids)) == 2_100
    assert counts(server, queue) == {"alice": 0, RECLAIMED: 2_100}


# ---------------------------------------------------------------- remove_consumer
def test_a_live_consumer_is_not_removed(server: RedisAdmin, make_queue: MakeQueue) -> None:
    queue = filled(make_queue)

    with pytest.raises(OperatorError, match="may be alive"):
        remove_consumer(server, queue.config.stream_key, "billing", "alice", new_owner="bob")

    assert counts(server, queue) == {"alice": 4}


def test_a_consumer_with_pending_entries_needs_a_new_owner(server: RedisAdmin, make_queue: MakeQueue) -> None:
    """XGROUP DELCONSUMER would drop its pending entries."""
    queue = filled(make_queue)

    with pytest.raises(OperatorError, match="4 entries pending"):
        remove_consumer(server, queue.config.stream_key, "billing", "alice", min_idle_s=0, force=True)

    assert counts(server, queue) == {"alice": 4}


def test_retiring_hands_everything_over_and_keeps_delivery_counts(server: RedisAdmin, make_queue: MakeQueue) -> None:
    queue = filled(make_queue, count=2_500, taken=2_300)

    done = remove_consumer(
        server, queue.config.stream_key, "billing", "alice", new_owner="bob", min_idle_s=0, force=True
    )

    assert done.transferred == 2_300
    assert counts(server, queue) == {"bob": 2_300}
    rows = list_pending(server, queue.config.stream_key, "billing", PendingFilter(limit=5_000))
    assert {row.deliveries for row in rows} == {1}


def test_removing_a_missing_consumer_is_an_error(server: RedisAdmin, make_queue: MakeQueue) -> None:
    queue = filled(make_queue)

    with pytest.raises(NoSuchStreamError, match="has no consumer 'carol'"):
        remove_consumer(server, queue.config.stream_key, "billing", "carol", min_idle_s=0, force=True)
    with pytest.raises(NoSuchStreamError, match="has no consumer group 'mailing'; there is: billing"):
        remove_consumer(server, queue.config.stream_key, "mailing", "alice", min_idle_s=0, force=True)
    with pytest.raises(OperatorError, match="own new owner"):
        remove_consumer(
            server, queue.config.stream_key, "billing", "alice", new_owner="alice", min_idle_s=0, force=True
        )


def test_a_removal_counts_what_was_really_transferred(server: RedisAdmin, client: Redis, make_queue: MakeQueue) -> None:
    """Of an entry that was deleted from the stream nothing can be transferred."""
    queue = filled(make_queue)
    rows: Any = client.xpending_range(queue.config.stream_key, "billing", "-", "+", 10)
    client.xdel(queue.config.stream_key, rows[0]["message_id"])

    done = remove_consumer(
        server, queue.config.stream_key, "billing", "alice", new_owner="bob", min_idle_s=0, force=True
    )

    assert done.transferred == counts(server, queue)["bob"]


def test_a_consumer_without_work_is_simply_deleted(server: RedisAdmin, make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.enqueue({"n": 1})
    queue.ack(queue.read(100)[0])

    assert (
        remove_consumer(server, queue.config.stream_key, "billing", "alice", min_idle_s=0, force=True).transferred == 0
    )
    assert counts(server, queue) == {}


# ---------------------------------------------------------------- trim
def test_trim_keeps_every_pending_and_undelivered_entry_of_every_group(
    server: RedisAdmin, make_queue: MakeQueue
) -> None:
    fast, slow = make_queue(), make_queue(consumer="bob", group="mailing")
    fast.enqueue_many([{"n": number} for number in range(500)])
    for message in fast.read(100, 500):
        fast.ack(message)
    late = slow.read(100, 300)
    for message in late[:200]:
        slow.ack(message)

    would = trim(server, fast.config.stream_key, dry_run=True)
    done = trim(server, fast.config.stream_key)

    assert (would.removed, would.length) == (None, 500)
    assert would.below_id == done.below_id == late[200].id
    assert (done.removed, done.length) == (200, 300)
    assert len(slow.recover_own(1_000)) == 100
    assert len(slow.read(100, 1_000)) == 200


def test_trim_keeps_what_is_young(server: RedisAdmin, make_queue: MakeQueue) -> None:
    queue = make_queue()
    queue.enqueue_many([{"n": number} for number in range(50)])
    for message in queue.read(100, 50):
        queue.ack(message)

    assert trim(server, queue.config.stream_key, older_than_s=3_600).removed == 0
    assert trim(server, queue.config.stream_key).removed == 49  # the last one delivered stays


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0])
def test_trim_refuses_what_is_no_number_of_seconds(server: RedisAdmin, make_queue: MakeQueue, seconds: float) -> None:
    queue = filled(make_queue)

    with pytest.raises(ConfigurationError, match="older_than_s must be a number of seconds"):
        trim(server, queue.config.stream_key, older_than_s=seconds)


def test_trim_refuses_a_stream_without_a_group(server: RedisAdmin, client: Redis, key_prefix: str) -> None:
    """It is not known what is needed: it may be read without a group."""
    client.xadd(f"{key_prefix}plain", {"data": "{}"})

    with pytest.raises(OperatorError, match="has no consumer group"):
        trim(server, f"{key_prefix}plain")

    assert client.xlen(f"{key_prefix}plain") == 1


def test_trim_compares_ids_as_numbers(server: RedisAdmin, client: Redis, key_prefix: str) -> None:
    """As text, 10-0 would come before 9-0, and an entry that is needed would go."""
    key = f"{key_prefix}ids"
    for entry_id in ("9-1", "9-10", "10-0", "100-0"):
        client.xadd(key, {"data": "{}"}, id=entry_id)
    client.xgroup_create(key, "billing", "0")
    client.xreadgroup("billing", "alice", {key: ">"}, count=4)
    client.xack(key, "billing", "9-1", "10-0", "100-0")

    done = trim(server, key)

    assert (done.below_id, done.removed) == ("9-10", 2)


# ---------------------------------------------------------------- enqueue
def test_payloads_are_enqueued_in_order_without_making_a_group(
    server: RedisAdmin, client: Redis, key_prefix: str
) -> None:
    key = f"{key_prefix}new"

    batches = list(enqueue_all(server, key, ({"n": number} for number in range(1_100))))

    assert [len(batch) for batch in batches] == [500, 500, 100]
    assert client.xlen(key) == 1_100
    assert client.xinfo_groups(key) == []


def test_a_payload_that_is_refused_ends_it_behind_those_before_it(
    server: RedisAdmin, client: Redis, key_prefix: str
) -> None:
    key = f"{key_prefix}new"

    with pytest.raises(PayloadError, match=r"at n\[1\]") as caught:
        list(enqueue_all(server, key, [{"n": 1}, {"n": 2}, {"n": [3, float("nan")]}, {"n": 4}]))

    assert caught.value.path == "n[1]"
    assert client.xlen(key) == 2


def test_enqueueing_to_a_key_of_another_type_says_what_is_there(
    server: RedisAdmin, client: Redis, key_prefix: str
) -> None:
    client.set(f"{key_prefix}text", "x")

    with pytest.raises(WrongKeyTypeError, match="holds a string"):
        list(enqueue_all(server, f"{key_prefix}text", [{}]))


def test_a_lost_reply_is_in_doubt_and_nothing_is_sent_twice(
    client: Redis, redis_url: str, key_prefix: str, fault_proxy: Callable[[str], FaultProxy]
) -> None:
    proxy = fault_proxy(redis_url)
    with Redis.from_url(proxy.url_for(redis_url)) as through, RedisAdmin(through) as server:
        proxy.drop_next_reply(after_request_matching=b"EVAL")

        with pytest.raises(QueueError) as caught:
            list(enqueue_all(server, f"{key_prefix}new", [{"n": 1}]))

    assert caught.value.in_doubt
    assert client.xlen(f"{key_prefix}new") == 1
