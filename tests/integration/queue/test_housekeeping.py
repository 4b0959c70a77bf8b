"""Streams are kept short without losing an entry that any group still needs, by one host at a time."""

import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from conquiet.core.backoff import Backoff
from conquiet.errors import LifecycleError
from conquiet.queue import Retention, StreamHousekeeper, housekeeping
from conquiet.redis_transport.liveness import housekeeping_key, liveness_key, registry_key
from conquiet.redis_transport.retention_scripts import REMOVE_DEAD_NAMES, TRIM
from conquiet.testing import wait_until

QUICK = Retention(interval_s=0.02)


@pytest.fixture
def raw(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url, decode_responses=True, protocol=2) as client:
        yield client


@pytest.fixture
def stream(raw: Redis, key_prefix: str) -> str:
    name = f"{key_prefix}orders"
    raw.xgroup_create(name, "fast", "0-0", mkstream=True)
    return name


def add(raw: Redis, stream: str, count: int) -> list[str]:
    pipe = raw.pipeline(transaction=False)
    for number in range(count):
        pipe.xadd(stream, {"data": f'{{"n":{number}}}'})
    return list(pipe.execute())


def read(raw: Redis, stream: str, group: str, count: int, consumer: str = "alice") -> list[str]:
    reply: Any = raw.xreadgroup(group, consumer, {stream: ">"}, count=count)
    return [entry_id for _, entries in reply for entry_id, _ in entries]


def ids(raw: Redis, stream: str, after: str = "-") -> set[str]:
    entries: Any = raw.xrange(stream, after)
    return {entry_id for entry_id, _ in entries}


def needed_ids(raw: Redis, stream: str, groups: list[str]) -> set[str]:
    """The ids that are pending or undelivered in some group, from the server's own lists."""
    needed: set[str] = set()
    for row in raw.xinfo_groups(stream):
        assert row["name"] in groups
        pending: Any = raw.xpending_range(stream, row["name"], "-", "+", 100_000)
        needed |= {entry["message_id"] for entry in pending} | ids(raw, stream, f"({row['last-delivered-id']}")
    return needed


def trim(raw: Redis, stream: str, *, limit: int = 10_000, keep_ms: int = 0, keep_min: int = 0) -> int:
    """Trim to the end; return how many entries went."""
    removed, gaps_from = 0, "0-0"
    while True:
        reply: Any = raw.eval(TRIM, 1, stream, "trim", limit, keep_ms, keep_min, gaps_from)
        removed += reply[2]
        if reply[6] == "end" or not (reply[2] or reply[6]):
            return int(removed)
        gaps_from = reply[6] or gaps_from


def test_entries_that_every_group_acknowledged_are_removed_except_the_last(raw: Redis, stream: str) -> None:
    add(raw, stream, 1_000)
    raw.xack(stream, "fast", *read(raw, stream, "fast", 900))

    removed = trim(raw, stream)

    assert removed == 899
    assert raw.xlen(stream) == 101
    assert raw.xinfo_groups(stream)[0].get("lag") in {None, 100}


def test_an_old_pending_entry_holds_back_nothing_but_itself(raw: Redis, stream: str) -> None:
    """A handler of an hour must not keep an hour of traffic in memory."""
    add(raw, stream, 5_000)
    first, *others = read(raw, stream, "fast", 5_000)
    kept = {first, others[2_000], others[-1]}
    raw.xack(stream, "fast", *(one for one in others if one not in kept))

    removed = trim(raw, stream)

    assert ids(raw, stream) == kept
    assert removed == 4_997
    assert raw.xinfo_groups(stream)[0].get("lag") in {None, 0}


def has_acked(raw: Redis) -> bool:
    """True from Redis 8.2 on: XTRIM … ACKED."""
    version = str(raw.info("server")["redis_version"])  # Valkey reports 7.2.4
    return tuple(int(part) for part in version.split(".")[:2]) >= (8, 2)


def deletions(raw: Redis) -> int:
    stats: Any = raw.info("commandstats")
    return int(stats.get("cmdstat_xdel", {}).get("calls", 0))


def test_a_server_with_acked_trims_behind_a_pending_entry(raw: Redis, stream: str) -> None:
    """A server with ACKED deletes them without sending their data through the script."""
    add(raw, stream, 3_000)
    first, *others = read(raw, stream, "fast", 3_000)
    raw.xack(stream, "fast", *others)
    before = deletions(raw)

    removed = trim(raw, stream)

    assert removed == 2_998
    assert ids(raw, stream) == {first, others[-1]}
    assert (deletions(raw) == before) is has_acked(raw)


def test_many_pending_entries_are_not_walked_over_in_each_step(raw: Redis, stream: str) -> None:
    """ACKED reads every pending entry in each call: with more than 10,000 of them, steps are bounded without it."""
    add(raw, stream, 10_500)
    taken = read(raw, stream, "fast", 10_500)
    raw.xack(stream, "fast", *taken[10_100:])
    before = deletions(raw)

    removed = trim(raw, stream)

    assert removed == 399
    assert ids(raw, stream) == {*taken[:10_100], taken[-1]}
    assert deletions(raw) > before


def test_a_pass_continues_in_gaps_between_large_messages(
    raw: Redis, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step reads 256 KiB there: 20 steps of 20 kB messages are 260 entries in a pass, fewer than traffic adds."""
    for _ in range(600):
        raw.xadd(stream, {"data": "x" * 20_000})
    _, *others = read(raw, stream, "fast", 600)
    raw.xack(stream, "fast", *others)
    monkeypatch.setattr(housekeeping, "random", SimpleNamespace(random=lambda: 0.0))  # the first pass is now

    with StreamHousekeeper(raw, [stream], retention=Retention(interval_s=600)):
        # In the first pass: the second one is ten minutes away. Fewer than 100 are not searched for.
        wait_until(lambda: raw.xlen(stream) <= 102)


def test_gaps_are_found_behind_more_pending_entries_than_one_step_lists(raw: Redis, stream: str) -> None:
    add(raw, stream, 6_000)
    taken = read(raw, stream, "fast", 6_000)
    pending = set(taken[:3_000]) | set(taken[3_000::2])
    raw.xack(stream, "fast", *(one for one in taken if one not in pending))

    trim(raw, stream)

    assert ids(raw, stream) == pending | {taken[-1]}


def test_a_slow_second_group_loses_nothing(raw: Redis, stream: str) -> None:
    """Planted bug: trimming by length, or by the fast group alone, makes this fail."""
    raw.xgroup_create(stream, "slow", "0-0")
    added = add(raw, stream, 3_000)
    raw.xack(stream, "fast", *read(raw, stream, "fast", 3_000))
    raw.xack(stream, "slow", *read(raw, stream, "slow", 1_000)[:500])

    with StreamHousekeeper(raw, [stream], retention=QUICK):
        wait_until(lambda: raw.xlen(stream) == 2_500)
        seen = read(raw, stream, "slow", 3_000)

    assert seen == added[1_000:]
    assert ids(raw, stream) == set(added[500:])


@pytest.mark.parametrize("seed", range(20))
def test_no_needed_entry_is_ever_removed(raw: Redis, stream: str, seed: int) -> None:
    """Random reads, acknowledgements and claims in three groups: what any of them needs is always there."""
    rng = random.Random(seed)
    groups = ["fast", "slow", "stuck"]
    for group in groups[1:]:
        raw.xgroup_create(stream, group, "0-0")
    for _ in range(40):
        add(raw, stream, rng.randrange(1, 300))
        for group in groups:
            if group == "stuck" and rng.random() < 0.7:
                continue
            read(raw, stream, group, rng.randrange(1, 400), consumer=rng.choice("ab"))
            pending = [one["message_id"] for one in raw.xpending_range(stream, group, "-", "+", 5_000)]
            done = [one for one in pending if rng.random() < rng.choice([0.3, 0.9, 1.0])]
            if done:
                raw.xack(stream, group, *done)
        needed = needed_ids(raw, stream, groups)

        trim(raw, stream, limit=rng.choice([100, 1_000, 10_000]), keep_min=rng.choice([0, 0, 150]))

        assert needed <= ids(raw, stream)
    assert needed_ids(raw, stream, groups) <= ids(raw, stream)


def test_a_group_that_never_read_keeps_everything(raw: Redis, stream: str) -> None:
    raw.xgroup_create(stream, "unread", "0-0")
    add(raw, stream, 500)
    raw.xack(stream, "fast", *read(raw, stream, "fast", 500))

    assert trim(raw, stream) == 0
    assert raw.xlen(stream) == 500


def test_keep_min_and_keep_s_keep_history(raw: Redis, stream: str) -> None:
    add(raw, stream, 2_000)
    raw.xack(stream, "fast", *read(raw, stream, "fast", 2_000))

    assert trim(raw, stream, keep_ms=3_600_000) == 0
    trim(raw, stream, keep_min=450)

    assert 450 <= raw.xlen(stream) <= 550
    trim(raw, stream)
    assert raw.xlen(stream) == 1


def test_only_the_holder_of_the_lease_trims(raw: Redis, stream: str) -> None:
    raw.set(housekeeping_key(stream), "another host", px=60_000)
    add(raw, stream, 500)
    raw.xack(stream, "fast", *read(raw, stream, "fast", 500))

    reply: Any = raw.eval(TRIM, 2, stream, housekeeping_key(stream), "trim", 10_000, 0, 0, "", "me", 3_000)

    assert reply[0] == "held"
    assert raw.xlen(stream) == 500


def test_a_released_lease_of_a_busy_stream_is_noticed_before_it_expires(raw: Redis, stream: str) -> None:
    """In a rolling deploy the host that stops may be the host that trims."""
    raw.set(housekeeping_key(stream), "another host", px=3_600_000)
    add(raw, stream, 1_000)
    raw.xack(stream, "fast", *read(raw, stream, "fast", 1_000))

    with StreamHousekeeper(raw, [stream], retention=QUICK) as housekeeper:
        planned_at = housekeeper._states[stream].next_at
        wait_until(
            lambda: housekeeper._states[stream].next_at != planned_at
        )  # the server replied that the lease is held
        assert raw.xlen(stream) == 1_000
        raw.delete(housekeeping_key(stream))
        wait_until(lambda: raw.xlen(stream) == 1)


def test_a_host_that_removed_names_only_releases_their_lease(
    raw: Redis, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the names that a deploy leaves stay until it expires."""
    raw.set(housekeeping_key(stream), "another host", px=60_000)
    monkeypatch.setattr(housekeeping, "_NAMES_S", 0.02)
    with StreamHousekeeper(raw, [stream], group="fast", retention=QUICK):
        monkeypatch.setattr(housekeeping, "_NAMES_S", 3_600.0)  # the lease of the next pass
        wait_until(lambda: int(raw.pttl(housekeeping_key(stream, "fast"))) > 1_000_000)

    assert raw.get(housekeeping_key(stream)) == "another host"
    assert raw.exists(housekeeping_key(stream, "fast")) == 0


def test_a_host_with_traffic_takes_the_lease_of_a_quiet_one(raw: Redis, stream: str) -> None:
    """Its holder makes its next pass when the lease is nearly over: in an hour."""
    raw.set(housekeeping_key(stream), "another host", px=3_600_000)
    messages_read = 0
    with StreamHousekeeper(raw, [stream], retention=QUICK, messages_read=lambda _: messages_read) as housekeeper:
        wait_until(lambda: housekeeper._states[stream].is_quiet)  # the server replied that the lease is held
        add(raw, stream, 100)
        raw.xack(stream, "fast", *read(raw, stream, "fast", 100))
        assert raw.get(housekeeping_key(stream)) == "another host"

        messages_read = 100

        wait_until(lambda: raw.xlen(stream) == 1)


@pytest.mark.parametrize(("left_ms", "reply"), [(4_000, "held"), (60_000, "ok")])
def test_traffic_takes_no_lease_of_a_holder_that_passes_often(
    raw: Redis, stream: str, left_ms: int, reply: str
) -> None:
    raw.set(housekeeping_key(stream), "another host", px=left_ms)

    answer: Any = raw.eval(TRIM, 2, stream, housekeeping_key(stream), "trim", 10_000, 0, 0, "", "me", 3_000, 4_000)

    assert answer[0] == reply


HOLDER = """
import sys, time, redis
from conquiet.queue import Retention, StreamHousekeeper
housekeeper = StreamHousekeeper(redis.Redis.from_url(sys.argv[1]), [sys.argv[2]], retention=Retention(interval_s=0.05))
housekeeper.start()
print("up", flush=True)
time.sleep(600)
"""


def test_a_killed_lease_holder_is_replaced(raw: Redis, redis_url: str, stream: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, redis_url, stream], stdout=subprocess.PIPE, text=True
    ) as holder:
        wait_until(lambda: raw.exists(housekeeping_key(stream)) == 1)
        token = raw.get(housekeeping_key(stream))
        os.kill(holder.pid, signal.SIGKILL)
    add(raw, stream, 500)
    raw.xack(stream, "fast", *read(raw, stream, "fast", 500))

    with StreamHousekeeper(raw, [stream], retention=QUICK):
        wait_until(lambda: raw.xlen(stream) == 1)
        assert raw.get(housekeeping_key(stream)) != token

    assert raw.exists(housekeeping_key(stream)) == 0


def test_a_stream_that_appears_later_is_trimmed_too(raw: Redis, key_prefix: str) -> None:
    name = f"{key_prefix}later"
    with StreamHousekeeper(raw, [name], group="fast", retention=QUICK):
        raw.xgroup_create(name, "fast", "0-0", mkstream=True)
        add(raw, name, 50)
        raw.xack(name, "fast", *read(raw, name, "fast", 50))

        wait_until(lambda: raw.xlen(name) == 1)


def test_a_refused_pass_is_logged_once_and_tried_again(
    raw: Redis, stream: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(housekeeping, "_AFTER_ERROR", Backoff(base_s=0.02, cap_s=60.0, jitter=0.0))
    raw.delete(stream)
    raw.set(stream, "no stream")
    with caplog.at_level(logging.WARNING), StreamHousekeeper(raw, [stream], retention=QUICK) as housekeeper:
        wait_until(lambda: housekeeper._states[stream].failures >= 3)
        raw.delete(stream)
        raw.xgroup_create(stream, "fast", "0-0", mkstream=True)
        add(raw, stream, 50)
        raw.xack(stream, "fast", *read(raw, stream, "fast", 50))
        wait_until(lambda: raw.xlen(stream) == 1)

    (record,) = caplog.records
    assert record.message.startswith("housekeeping failed, trying again later")


def test_without_a_retention_a_growing_stream_is_reported_once(
    raw: Redis, stream: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(housekeeping, "_WATCH_S", 0.02)
    monkeypatch.setattr("conquiet.queue.retention.WARN_FROM", 100)

    def handle_more() -> bool:
        add(raw, stream, 200)
        raw.xack(stream, "fast", *read(raw, stream, "fast", 200))
        return "stream only grows" in caplog.text

    with caplog.at_level(logging.WARNING), StreamHousekeeper(raw, [stream], retention=None):
        wait_until(handle_more)
        length = raw.xlen(stream)
        for _ in range(20):
            handle_more()

    assert caplog.text.count("stream only grows") == 1
    assert raw.xlen(stream) == length + 4_000


# ------------------------------------------------------------ names of consumers


def names(raw: Redis, stream: str) -> set[str]:
    return {row["name"] for row in raw.xinfo_consumers(stream, "fast")}


def remove_names(raw: Redis, stream: str, *candidates: str, proof_ms: str = "") -> list[str]:
    keys = [stream, registry_key(stream, "fast"), *(liveness_key(stream, "fast", name) for name in candidates)]
    reply: Any = raw.eval(REMOVE_DEAD_NAMES, len(keys), *keys, "fast", proof_ms, *candidates)
    return list(reply)


@pytest.fixture
def four(raw: Redis, stream: str) -> str:
    """Consumers: live (has its key), dead, busy (dead, with an entry), other (never had a key)."""
    for name in ("live", "dead", "busy", "other"):
        raw.xgroup_createconsumer(stream, "fast", name)
    raw.sadd(registry_key(stream, "fast"), "live", "dead", "busy")
    raw.set(liveness_key(stream, "fast", "live"), "token", px=60_000)
    add(raw, stream, 1)
    read(raw, stream, "fast", 1, consumer="busy")
    return stream


def test_only_dead_names_without_entries_are_removed(raw: Redis, four: str) -> None:
    removed = remove_names(raw, four, "live", "dead", "busy", "other")

    assert removed == ["dead"]
    assert names(raw, four) == {"live", "busy", "other"}


@pytest.mark.parametrize("retention", [QUICK, None], ids=["retention", "no retention"])
def test_a_dead_name_goes_after_its_entries_were_claimed(
    raw: Redis, four: str, monkeypatch: pytest.MonkeyPatch, retention: Retention | None
) -> None:
    monkeypatch.setattr(housekeeping, "_NAMES_S", 0.02)
    with StreamHousekeeper(raw, [four], group="fast", retention=retention):
        wait_until(lambda: names(raw, four) == {"live", "busy", "other"})
        raw.xautoclaim(four, "fast", "live", 0, justid=True)

        wait_until(lambda: names(raw, four) == {"live", "other"})

    assert raw.xpending(four, "fast")["consumers"] == [{"name": "live", "pending": 1}]


@pytest.mark.parametrize("retention", [QUICK, None], ids=["retention", "no retention"])
def test_only_with_a_retention_a_name_of_another_program_is_removed(
    raw: Redis, four: str, monkeypatch: pytest.MonkeyPatch, retention: Retention | None
) -> None:
    """Without one, the stream may belong to the other program."""
    monkeypatch.setattr(housekeeping, "_NAMES_S", 0.02)
    monkeypatch.setattr(housekeeping, "_UNREGISTERED_IDLE_MS", 0)
    monkeypatch.setattr(StreamHousekeeper, "_server_counts_attempts", lambda *_: True)
    with StreamHousekeeper(raw, [four], group="fast", retention=retention):
        wait_until(lambda: "dead" not in names(raw, four))

    assert ("other" in names(raw, four)) == (retention is None)


def test_a_consumer_without_a_key_is_removed_by_proved_idle_time(raw: Redis, four: str) -> None:
    assert remove_names(raw, four, "other", proof_ms="3600000") == []
    assert remove_names(raw, four, "other", proof_ms="0") == ["other"]


def test_closing_twice_or_before_the_start_is_harmless(raw: Redis, stream: str) -> None:
    housekeeper = StreamHousekeeper(raw, [stream])
    with contextlib.closing(housekeeper):
        housekeeper.close()


async def test_a_block_inside_an_event_loop_closes_the_housekeeper(redis_url: str, stream: str) -> None:
    with Redis.from_url(redis_url) as client, StreamHousekeeper(client, [stream], retention=QUICK) as housekeeper:
        pass

    with pytest.raises(LifecycleError):
        housekeeper.start()
