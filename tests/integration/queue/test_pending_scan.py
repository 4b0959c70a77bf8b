"""Finding what was left behind: claim_stale, recover_own, extend. Seed 001 §5.6, §5.7, seed 000 §10."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import pytest
from tests.redis_clients import RawRedis

from conquiet.errors import MalformedMessageError, QueueError
from conquiet.queue import RedisStreamsQueue, pending_scan
from conquiet.testing import wait_until

PendingOf = Callable[..., dict[str, tuple[str, int]]]
Commands = Callable[[], dict[str, int]]


class MakeQueue(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> RedisStreamsQueue: ...


def make_idle(raw: RawRedis, stream: str, ids: list[str], consumer: str, idle_ms: int = 120_000) -> None:
    """Turn the server's clock back for these entries."""
    raw.xclaim(stream, "billing", consumer, 0, ids, idle=idle_ms, retrycount=1, justid=True)


# ---------------------------------------------------------------- claim_stale
@pytest.mark.spec(
    "RS-005.28", "RS-005.30", "RS-005.31", "RS-005.33", "CQ-006.16", "CQ-006.17", "QC-010.2", "QC-002.2", "RS-005.29",
    "RS-005.37",
)  # fmt: skip
def test_only_what_is_idle_for_long_enough_is_claimed(
    make_queue: MakeQueue, raw: RawRedis, stream: str, pending: PendingOf, commands_of: Commands
) -> None:
    alice, bob = make_queue("alice"), make_queue("bob")
    old, young = alice.enqueue_many([{"n": 1}, {"n": 2}])
    alice.read(100, 2)
    make_idle(raw, stream, [old], "alice")
    before = commands_of()

    (message,) = bob.claim_stale(60_000)

    assert (message.id, message.payload, message.delivery_count) == (old, {"n": 1}, 2)
    assert pending() == {old: ("bob", 2), young: ("alice", 1)}
    after = commands_of()
    assert after["xpending"] > before.get("xpending", 0)
    assert after["xclaim"] == before["xclaim"] + 1


@pytest.mark.spec("CQ-006.18")
@pytest.mark.parametrize("small_group", [0, 10_000], ids=["long list", "short list"])
def test_nothing_stale_means_no_claim(
    make_queue: MakeQueue, commands_of: Commands, small_group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_scan, "SMALL_GROUP", small_group)
    monkeypatch.setattr(pending_scan, "PAGE", 10)
    alice, bob = make_queue("alice"), make_queue("bob")
    assert bob.claim_stale(1) == []
    alice.enqueue_many([{"n": n} for n in range(30)])
    alice.read(100, 30)

    for _ in range(4):  # a long list is read page by page
        assert bob.claim_stale(60_000) == []

    assert "xclaim" not in commands_of()


@pytest.mark.spec("CQ-006.16")
@pytest.mark.spec("RS-005.35", "RS-005.36", "RS-005.32", "RS-005.34", "RS-005.39", "QC-010.7", "QC-010.9", "QC-012.9")
def test_one_call_is_bounded_and_further_calls_get_the_rest(make_queue: MakeQueue, raw: RawRedis, stream: str) -> None:
    alice, bob = make_queue("alice"), make_queue("bob")
    ids = alice.enqueue_many([{"n": n} for n in range(25)])
    alice.read(100, 25)
    make_idle(raw, stream, ids, "alice")

    claimed = [bob.claim_stale(60_000) for _ in range(4)]
    batches = [[message.id for message in batch] for batch in claimed]

    assert {name for name in dir(claimed[0]) if not name.startswith("_")} - set(dir(list)) == {
        "malformed", "deleted", "last_id",
    }  # fmt: skip
    assert [len(batch) for batch in batches] == [10, 10, 5, 0]
    assert sorted(message_id for batch in batches for message_id in batch) == sorted(ids)


@pytest.mark.spec("RS-002.6", "RS-002.5", "QC-004.6")
def test_claiming_breaks_the_order(make_queue: MakeQueue, raw: RawRedis, stream: str) -> None:
    alice, bob = make_queue("alice"), make_queue("bob")
    first, second = alice.enqueue_many([{"n": 1}, {"n": 2}])
    alice.read(100)

    handled = [message.id for message in bob.read(100)]
    make_idle(raw, stream, [first], "alice")
    handled += [message.id for message in bob.claim_stale(60_000)]

    assert handled == [second, first]


@pytest.mark.spec("QC-010.9", "RS-005.28", "RS-005.37")
@pytest.mark.parametrize("small_group", [0, 10_000], ids=["long list", "short list"])
def test_stale_entries_are_found_wherever_they_stand(
    make_queue: MakeQueue, raw: RawRedis, stream: str, small_group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of the list, in the middle, of dead consumers, of live ones and of the caller."""
    monkeypatch.setattr(pending_scan, "SMALL_GROUP", small_group)
    monkeypatch.setattr(pending_scan, "PAGE", 10)
    alice, bob, carol = make_queue("alice"), make_queue("bob"), make_queue("carol")
    ids = alice.enqueue_many([{"n": n} for n in range(120)])
    alice.read(100, 80)
    bob.read(100, 39)
    carol.read(100, 1)
    stale = {ids[3]: "alice", ids[79]: "alice", ids[45]: "alice", ids[90]: "bob", ids[119]: "carol"}
    for message_id, owner in stale.items():
        make_idle(raw, stream, [message_id], owner)

    found: set[str] = set()
    for _ in range(20):
        found |= {message.id for message in carol.claim_stale(60_000)}

    assert found == set(stale)


@pytest.mark.parametrize("first", [20, 47, 75], ids=["page of its own", "across two pages", "last page"])
def test_stale_entries_beyond_the_count_are_found_by_the_next_call(
    make_queue: MakeQueue, raw: RawRedis, stream: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_scan, "SMALL_GROUP", 0)
    monkeypatch.setattr(pending_scan, "PAGE", 10)
    alice, bob = make_queue("alice"), make_queue("bob")
    ids = alice.enqueue_many([{"n": n} for n in range(80)])
    alice.read(100, 80)
    stale = ids[first : first + 5]
    make_idle(raw, stream, stale, "alice")

    found: list[str] = []
    for _ in range(first // 10 + 3):  # the way there, and three calls of two
        found += [message.id for message in bob.claim_stale(60_000, count=2)]

    assert found == stale


@pytest.mark.spec("RS-005.30", "RS-005.35")
def test_the_cost_does_not_grow_with_the_pending_list(
    make_queue: MakeQueue, raw: RawRedis, stream: str, commands_of: Commands
) -> None:
    """Counted, not timed: rows that the server reads, by commands and their sizes."""
    alice, bob = make_queue("alice"), make_queue("bob")
    for _ in range(3):
        alice.enqueue_many([{}] * 5_000)
    alice.read(100, 14_990)
    last = [message.id for message in make_queue("dead").read(100, 10)]
    make_idle(raw, stream, last, "dead")
    before, sent_bytes = commands_of(), raw.info("stats")["total_net_output_bytes"]

    assert [message.id for message in bob.claim_stale(60_000)] == last

    after = commands_of()
    assert after["xpending"] - before.get("xpending", 0) <= 3
    assert after["xinfo|consumers"] - before.get("xinfo|consumers", 0) == 1
    assert bob.claim_stale(60_000) == []
    # Two pages of a thousand rows at most; all of them would be a megabyte each time.
    assert raw.info("stats")["total_net_output_bytes"] - sent_bytes < 300_000


@pytest.mark.spec("RS-005.33", "CQ-001.9", "CQ-006.17")
def test_of_two_concurrent_claims_one_gets_the_entry(make_queue: MakeQueue, raw: RawRedis, stream: str) -> None:
    """The server has the last word: an entry that was claimed since we looked is young again."""
    alice, bob, carol = make_queue("alice"), make_queue("bob"), make_queue("carol")
    (message_id,) = alice.enqueue_many([{"n": 1}])
    alice.read(100)
    make_idle(raw, stream, [message_id], "alice")
    find: Any = bob._stale.find

    def find_and_be_late(**options: Any) -> Any:
        rows = find(**options)
        assert len(carol.claim_stale(60_000)) == 1
        return rows

    bob._stale.find = find_and_be_late  # type: ignore[method-assign]
    batch = bob.claim_stale(60_000)

    assert batch == []
    assert batch.deleted == ()


@pytest.mark.parametrize("how", ["xdel", "xtrim"])
def test_deleted_entries_are_dropped_and_named_and_never_delivered(
    make_queue: MakeQueue, raw: RawRedis, stream: str, pending: PendingOf, how: str
) -> None:
    alice, bob = make_queue("alice"), make_queue("bob")
    ids = alice.enqueue_many([{"n": n} for n in range(4)])
    alice.read(100, 4)
    make_idle(raw, stream, ids, "alice")
    raw.xdel(stream, *ids[:2]) if how == "xdel" else raw.xtrim(stream, 2, approximate=False)

    batch = bob.claim_stale(60_000)

    assert [message.id for message in batch] == ids[2:]
    assert sorted(batch.deleted) == ids[:2]
    assert sorted(pending()) == ids[2:]


def test_malformed_entries_do_not_block_the_others(
    make_queue: MakeQueue, add_raw: Callable[..., str], raw: RawRedis, stream: str
) -> None:
    alice, bob = make_queue("alice"), make_queue("bob")
    bad = [add_raw({"data": "oops"}) for _ in range(3)]
    good = alice.enqueue({"n": 1})
    with pytest.raises(MalformedMessageError):
        alice.read(100, 3)
    alice.read(100)
    make_idle(raw, stream, [*bad, good], "alice")

    with pytest.raises(MalformedMessageError) as caught:
        bob.claim_stale(60_000, 2)
    batch = bob.claim_stale(60_000, 2)

    assert caught.value.message_ids == tuple(bad[:2])
    assert [message.id for message in batch] == [good]
    assert [error.message_id for error in batch.malformed] == bad[2:]


@pytest.mark.parametrize("small_group", [0, 10_000], ids=["long list", "short list"])
def test_own_messages_are_skipped_on_request_and_hide_no_others(
    make_queue: MakeQueue,
    raw: RawRedis,
    stream: str,
    pending: PendingOf,
    small_group: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Own entries are first in the list, more of them than are claimed in one call."""
    monkeypatch.setattr(pending_scan, "SMALL_GROUP", small_group)
    alice, bob = make_queue("alice"), make_queue("bob", claim_skip_own_messages=True)
    ids = alice.enqueue_many([{"n": n} for n in range(30)])
    bob.read(100, 25)
    alice.read(100, 5)
    make_idle(raw, stream, ids[:25], "bob")
    make_idle(raw, stream, ids[25:], "alice")

    skipping = [message.id for message in bob.claim_stale(60_000)]
    nothing_else = bob.claim_stale(60_000)
    asked_for_all = [message.id for message in make_queue("bob").claim_stale(60_000)]

    assert skipping == ids[25:]
    assert nothing_else == []
    assert asked_for_all == ids[:10]
    assert pending()[ids[24]] == ("bob", 1)


def test_with_nothing_of_ones_own_skipping_changes_nothing(make_queue: MakeQueue, raw: RawRedis, stream: str) -> None:
    alice, bob = make_queue("alice"), make_queue("bob", claim_skip_own_messages=True)
    ids = alice.enqueue_many([{"n": n} for n in range(3)])
    alice.read(100, 3)
    make_idle(raw, stream, ids, "alice")

    assert [message.id for message in bob.claim_stale(60_000)] == ids


@pytest.mark.spec("CQ-003.6")
@pytest.mark.parametrize("bad", [0, -1, True, "9", None])
def test_claiming_takes_positive_ints_only(queue: RedisStreamsQueue, bad: Any) -> None:
    with pytest.raises(QueueError, match="positive int"):
        queue.claim_stale(bad)
    with pytest.raises(QueueError, match="positive int"):
        queue.claim_stale(1000, bad)


@pytest.mark.spec("RS-005.40", "QC-010.10", "RS-008.5")
def test_the_queue_has_no_recovery_policy_of_its_own(make_queue: MakeQueue, pending: PendingOf) -> None:
    alice, bob = make_queue("alice", claim_idle_ms=1), make_queue("bob", claim_idle_ms=1)
    message_id = alice.enqueue({"n": 1})
    alice.read(100)

    for _ in range(5):
        bob.read(20)

    assert pending() == {message_id: ("alice", 1)}


# ---------------------------------------------------------------- recover_own
def test_a_restarted_process_finds_its_own_entries_with_their_delivery_counts(
    make_queue: MakeQueue, pending: PendingOf
) -> None:
    before = make_queue("alice")
    ids = before.enqueue_many([{"n": n} for n in range(5)])
    before.read(100, 3)
    make_queue("bob").read(100, 1)
    before.close()

    batch = make_queue("alice").recover_own()

    assert [message.id for message in batch] == ids[:3]
    assert [message.payload for message in batch] == [{"n": n} for n in range(3)]
    assert {message.delivery_count for message in batch} == {2}
    assert {pending()[message_id] for message_id in ids[:3]} == {("alice", 2)}
    assert batch.last_id == ids[2]


def test_own_entries_come_page_by_page_until_there_is_no_last_id(
    queue: RedisStreamsQueue, raw: RawRedis, stream: str, add_raw: Callable[..., str]
) -> None:
    ids = queue.enqueue_many([{"n": n} for n in range(7)])
    queue.read(100, 7)
    raw.xdel(stream, *ids[2:4])

    found: list[str] = []
    deleted: list[str] = []
    after = "0-0"
    while True:
        batch = queue.recover_own(2, after=after)
        if batch.last_id is None:
            break
        found += [message.id for message in batch]
        deleted += batch.deleted
        after = batch.last_id

    assert found == [*ids[:2], *ids[4:]]
    assert deleted == ids[2:4]
    assert raw.xpending(stream, "billing")["pending"] == 5


def test_nothing_of_ones_own_is_an_empty_batch(queue: RedisStreamsQueue) -> None:
    queue.enqueue({"n": 1})

    assert queue.recover_own() == []
    with pytest.raises(QueueError, match="entry id"):
        queue.recover_own(after="$")


# ---------------------------------------------------------------- extend
def test_an_extended_message_is_young_again_and_was_not_delivered_again(
    make_queue: MakeQueue, raw: RawRedis, stream: str, pending: PendingOf
) -> None:
    alice, bob = make_queue("alice"), make_queue("bob")
    message_id = alice.enqueue({"n": 1})
    (message,) = alice.read(100)
    make_idle(raw, stream, [message_id], "alice")

    assert alice.extend(message) is True

    assert bob.claim_stale(60_000) == []
    assert pending() == {message_id: ("alice", 1)}


def test_a_message_claimed_by_another_consumer_is_not_claimed_back(
    make_queue: MakeQueue, raw: RawRedis, stream: str
) -> None:
    alice, bob = make_queue("alice"), make_queue("bob")
    alice.enqueue({"n": 1})
    (message,) = alice.read(100)
    make_idle(raw, stream, [message.id], "alice")
    (claimed,) = bob.claim_stale(60_000)

    assert alice.extend(message) is False
    assert bob.extend(claimed) is True


def test_extending_does_not_restore_an_acknowledged_message(queue: RedisStreamsQueue, pending: PendingOf) -> None:
    queue.enqueue({"n": 1})
    (message,) = queue.read(100)
    queue.ack(message)

    assert queue.extend(message) is False
    assert pending() == {}


# ---------------------------------------------------------------- backlog
@pytest.mark.spec("QC-012.4", "QC-012.5", "QC-012.6", "QC-012.7", "QC-012.8")
def test_reading_the_backlog_changes_nothing(
    queue: RedisStreamsQueue, raw: RawRedis, stream: str, pending: PendingOf, commands_of: Commands
) -> None:
    empty = queue.backlog()
    ids = queue.enqueue_many([{"n": n} for n in range(5)])
    queue.ack(queue.read(100)[0])
    queue.read(100)
    time.sleep(0.05)  # so that there is an age to see
    before = (pending(), raw.xinfo_groups(stream), commands_of())

    backlog = queue.backlog()

    assert (empty.length, empty.pending, empty.lag, empty.oldest_age_s) == (0, 0, 0, None)
    assert (backlog.length, backlog.pending, backlog.lag) == (5, 1, 3)
    assert backlog.oldest_age_s is not None
    assert 0.05 <= backlog.oldest_age_s < 30
    after = commands_of()
    asked = sum(calls - before[2].get(name, 0) for name, calls in after.items() if name != "info")
    assert asked <= 5
    assert (pending(), raw.xinfo_groups(stream)) == before[:2]
    assert list(pending()) == [ids[1]]


@pytest.mark.spec("QC-012.5", "QC-012.6")
def test_the_backlog_of_a_long_stream_costs_no_more_and_writes_nothing(
    queue: RedisStreamsQueue, raw: RawRedis, commands_of: Commands
) -> None:
    """Thousands wait and thousands are pending: the size of the reply does not depend on them."""
    for _ in range(4):
        queue.enqueue_many([{"text": "x" * 100}] * 2_000)
    queue.read(100, 4_000)
    before = commands_of()
    changes, sent_bytes = (raw.info()[name] for name in ("rdb_changes_since_last_save", "total_net_output_bytes"))

    backlog = queue.backlog()

    assert (backlog.length, backlog.pending, backlog.lag) == (8_000, 4_000, 4_000)
    after = raw.info()
    assert after["rdb_changes_since_last_save"] == changes
    assert after["total_net_output_bytes"] - sent_bytes < 50_000
    counted = commands_of()
    assert sum(counted[name] - before.get(name, 0) for name in counted if name != "info") <= 5


def test_an_undelivered_stream_is_as_old_as_its_first_entry(queue: RedisStreamsQueue) -> None:
    queue.enqueue({"n": 1})

    assert wait_until(lambda: (queue.backlog().oldest_age_s or 0) > 0.02)


def test_an_unknown_lag_is_none(queue: RedisStreamsQueue, raw: RawRedis, stream: str) -> None:
    ids = queue.enqueue_many([{"n": n} for n in range(4)])
    queue.read(100)
    raw.xdel(stream, ids[2])

    assert queue.backlog().lag is None
