"""The relay between a real database and a real Redis."""

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import redis
from sqlalchemy import text
from sqlalchemy.engine import Engine
from tests.integration.transactional.conftest import to_stream

from conquiet.config import QueueConfig
from conquiet.core.backoff import Backoff
from conquiet.core.lifecycle import Status
from conquiet.db.session import DbSession
from conquiet.queue import QueueConsumer, RedisStreamsQueue
from conquiet.testing import RedisServer, wait_until
from conquiet.transactional import Outbox, OutboxMessage, OutboxRelay, PublishOutcome, ToProcessor, ToStream

NO_WAIT = Backoff(base_s=0.0, cap_s=0.0)


def add(engine: Engine, *names: str, key: str | None = None) -> None:
    with DbSession(engine) as session:
        for name in names:
            Outbox().add(session, "ledger", {"name": name}, key)


def left(engine: Engine) -> int:
    with DbSession(engine) as session:
        return int(session.execute_scalar("SELECT COUNT(*) FROM conquiet_outbox"))


def names(queue: RedisStreamsQueue) -> list[str]:
    return [message.payload["name"] for message in queue.read(1, count=10_000)]


def test_a_written_message_arrives_with_its_id_and_leaves_the_outbox(engine: Engine, queue: RedisStreamsQueue) -> None:
    with DbSession(engine) as session:
        message_id = Outbox().add(session, "ledger", {"amount": 5})

    with OutboxRelay(engine, {"ledger": to_stream(queue)}) as relay:
        relay.drain()

    (message,) = queue.read(1)
    assert message.payload == {"amount": 5, "_outbox_id": message_id}
    assert left(engine) == 0


def test_many_relays_publish_each_row_once_in_key_order(engine: Engine, queue: RedisStreamsQueue) -> None:
    """No relay dies here, so nothing may be published twice either. Rows are added while the relays run."""
    keys, each = 5, 60
    added, stop = threading.Event(), threading.Event()

    def relay_until_stopped() -> int:
        published = 0
        with OutboxRelay(engine, {"ledger": to_stream(queue)}, batch=7) as relay:
            while not stop.is_set():
                published += relay.relay_once().published
                if added.is_set() and left(engine) == 0:
                    stop.set()
        return published

    with ThreadPoolExecutor(3) as pool:
        relays = [pool.submit(relay_until_stopped) for _ in range(3)]
        for number in range(each):
            for key in range(keys):
                add(engine, f"{key}:{number}", key=str(key))
            add(engine, f"x:{number}")
        added.set()
        shares = [relay.result(60) for relay in relays]

    arrived = names(queue)
    assert sum(shares) == len(arrived) == len(set(arrived)) == (keys + 1) * each
    by_key = defaultdict(list)
    for name in arrived:
        of, _, place = name.partition(":")
        by_key[of].append(int(place))
    for of in map(str, range(keys)):
        assert by_key[of] == list(range(each)), f"key {of} is out of order"


def test_a_key_belongs_to_the_relay_with_its_oldest_row(engine: Engine, queue: RedisStreamsQueue) -> None:
    add(engine, "a1", "a2", key="a")
    add(engine, "b1", key="b")
    with OutboxRelay(engine, {"ledger": to_stream(queue)}) as relay:
        with DbSession(engine) as other:
            other.fetch_all("SELECT seq FROM conquiet_outbox WHERE seq = 1 FOR UPDATE")

            relay.drain()

            assert names(queue) == ["b1"], "a2 is free, but what is before it is not out yet"
        relay.drain()
    assert names(queue) == ["a1", "a2"]


def test_a_row_behind_an_uncommitted_older_one_is_not_published(
    engine: Engine, queue: RedisStreamsQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the scan and the lock another relay can take the oldest row: the check comes after the locks."""
    from conquiet.transactional.outbox_store import OutboxStore

    add(engine, "a1", "a2", key="a")
    scan = OutboxStore.scan_keyed

    def scan_too_late(self: OutboxStore, *args: object, **kwargs: object) -> object:
        seen, age_s = scan(self, *args, **kwargs)  # type: ignore[arg-type]
        return seen[1:], age_s

    monkeypatch.setattr(OutboxStore, "scan_keyed", scan_too_late)
    with OutboxRelay(engine, {"ledger": to_stream(queue)}) as relay:
        assert relay.relay_once().published == 0
    assert names(queue) == []


def test_an_older_row_committed_late_holds_the_key_back(
    engine: Engine, queue: RedisStreamsQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers are given when rows are written, but rows are visible only when they are committed."""
    from conquiet.transactional.outbox_store import OutboxStore

    lock = OutboxStore.lock_heads
    with OutboxRelay(engine, {"ledger": to_stream(queue)}) as relay, ExitStack() as slow:
        Outbox().add(slow.enter_context(DbSession(engine)), "ledger", {"name": "a1"}, key="a")
        add(engine, "a2", key="a")

        def lock_then_commit(self: OutboxStore, *args: object, **kwargs: object) -> object:
            locked = lock(self, *args, **kwargs)  # type: ignore[arg-type]
            assert locked, "a2 is the oldest row that can be seen"
            slow.close()  # commits
            return locked

        with monkeypatch.context() as patched:
            patched.setattr(OutboxStore, "lock_heads", lock_then_commit)
            assert relay.relay_once().published == 0

        assert names(queue) == []
        relay.drain()
    assert names(queue) == ["a1", "a2"]


def test_publishing_does_not_keep_business_transactions_from_writing(
    engine: Engine, db_url: str, make_engine: Callable[..., Engine]
) -> None:
    publishing, go_on = threading.Event(), threading.Event()

    class Slow:
        def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
            publishing.set()
            assert go_on.wait(60)
            return [(PublishOutcome.PUBLISHED, "")] * len(messages)

    add(engine, "first")
    impatient = make_engine(db_url, lock_wait_s=1)
    with OutboxRelay(engine, {"ledger": Slow()}) as relay, ThreadPoolExecutor(1) as pool:
        running = pool.submit(relay.relay_once)
        assert publishing.wait(60)

        add(impatient, "second")
        add(impatient, "third", key="k")

        go_on.set()
        assert running.result(60).published == 1
    assert left(engine) == 2


@pytest.mark.parametrize("keys", [[None] * 8, ["a"] * 4 + ["b"] * 4], ids=["free", "keyed"])
def test_two_relays_on_a_small_table_do_not_wait(
    engine: Engine, db_url: str, make_engine: Callable[..., Engine], keys: list[str | None]
) -> None:
    """A DELETE that reads rows of the other relay waits for them; two of these deadlock, and one is repeated."""
    holding, go_on = threading.Event(), threading.Event()

    class Target:
        def __init__(self, *, slow: bool) -> None:
            self._slow = slow

        def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
            if self._slow:
                holding.set()
                assert go_on.wait(60)
            return [(PublishOutcome.PUBLISHED, "")] * len(messages)

    for key in keys:
        add(engine, "message", key=key)
    impatient = make_engine(db_url, lock_wait_s=1)
    with (
        OutboxRelay(engine, {"ledger": Target(slow=True)}, batch=4) as slow,
        OutboxRelay(impatient, {"ledger": Target(slow=False)}, batch=4) as quick,
        ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(slow.relay_once)
        assert holding.wait(60)

        try:
            by_the_other = quick.drain().published
        finally:
            go_on.set()

        assert (by_the_other, running.result(60).published) == (4, 4)
    assert left(engine) == 0


def test_a_row_not_deleted_is_published_again_with_its_id(engine: Engine, queue: RedisStreamsQueue) -> None:
    class DiesAfterwards(ToStream):
        def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
            super().publish(messages)
            raise KeyboardInterrupt

    add(engine, "once")
    with (
        pytest.raises(KeyboardInterrupt),
        OutboxRelay(engine, {"ledger": DiesAfterwards(queue.redis, queue.config.stream_key)}) as relay,
    ):
        relay.relay_once()
    with OutboxRelay(engine, {"ledger": to_stream(queue)}) as relay:
        relay.drain()

    ids = [message.payload["_outbox_id"] for message in queue.read(1, count=10)]
    assert len(ids) == 2
    assert len(set(ids)) == 1


def test_a_payload_that_the_stream_refuses_is_parked_and_the_others_arrive(
    engine: Engine, redis_url: str, key_prefix: str
) -> None:
    config = QueueConfig(f"{key_prefix}small", "g", "c", max_payload_bytes=200)
    with redis.Redis.from_url(redis_url) as client, RedisStreamsQueue(client, config) as small:
        add(engine, "x" * 300, "behind", key="a")
        add(engine, "free")
        with OutboxRelay(engine, {"ledger": to_stream(small)}, max_attempts=2, backoff=NO_WAIT) as relay:
            relay.drain()

        assert sorted(names(small)) == ["behind", "free"]
    (parked,) = Outbox().parked(engine)
    assert "max_payload_bytes" in parked.reason
    assert parked.attempts == 2


def test_rows_wait_for_a_redis_that_is_down_and_keep_their_attempts(
    engine: Engine, private_redis: Callable[..., RedisServer], key_prefix: str
) -> None:
    server = private_redis(aof=True)
    config = QueueConfig(f"{key_prefix}ledger", "g", "c")
    with redis.Redis.from_url(server.url) as client, ToStream(client, config.stream_key) as target:
        relay = OutboxRelay(
            engine, {"ledger": target}, max_attempts=1, poll_s=0.01, backoff=Backoff(base_s=0.01, cap_s=0.05)
        )
        with relay, ThreadPoolExecutor(1) as pool:
            running = pool.submit(relay.run)
            server.kill()
            add(engine, "patient")
            wait_until(lambda: relay.unavailable_targets, message="the relay has tried")
            assert left(engine) == 1

            server.restart()

            wait_until(lambda: left(engine) == 0, message="the row is published")
            relay.stop()
            running.result(60)
        (entry,) = client.xrange(config.stream_key)
    assert json.loads(entry[1][b"data"])["name"] == "patient"
    assert Outbox().parked(engine) == []


def test_the_relay_changes_settings_on_connections_of_its_own_only(engine: Engine, queue: RedisStreamsQueue) -> None:
    """A host that vanishes keeps its locks until the server gives the connection up: in minutes, not hours."""

    def setting(of: Engine) -> tuple[int, str]:
        with of.connect() as connection:
            row = connection.execute(text("SELECT @@SESSION.wait_timeout, @@SESSION.innodb_lock_wait_timeout")).one()
            return int(row[0]), str(row[1])

    with OutboxRelay(engine, {"ledger": to_stream(queue)}) as relay:
        relay.relay_once()

        assert setting(relay._engine) == (120, "60"), "the caller's own settings are kept"
        assert setting(engine)[0] > 1_000


def test_a_stop_ends_a_relay_that_has_nothing_to_do(
    engine: Engine, make_consumer: Callable[..., QueueConsumer]
) -> None:
    target = to_stream(make_consumer().queue)
    with OutboxRelay(engine, {"ledger": target}, poll_s=600.0) as relay, ThreadPoolExecutor(1) as pool:
        running = pool.submit(relay.run)
        wait_until(lambda: relay._life.status is Status.RUNNING)
        relay.stop()
        running.result(60)


def test_unserved_rows_are_found_by_index_alone(engine: Engine, queue: RedisStreamsQueue) -> None:
    """The relay searches for them twice a minute. That must not read every waiting row."""
    with DbSession(engine) as session:
        for number in range(600):
            Outbox().add(session, "ledger" if number % 2 else "leger", {"n": number}, key=str(number % 7))
        session.execute("UPDATE conquiet_outbox SET due_at = '2020-01-01', created_at = '2020-01-01'")
    with DbSession(engine) as session:
        session.execute("ANALYZE TABLE conquiet_outbox")

    with OutboxRelay(engine, {"ledger": to_stream(queue)}) as relay, DbSession(engine) as session:
        session.execute("FLUSH STATUS")
        relay._unserved.check(session)
        reads = {
            row["Variable_name"]: int(row["Value"])
            for row in session.fetch_all("SHOW SESSION STATUS LIKE 'Handler_read%'")
        }
        assert relay.unserved_targets == ["leger"]

    assert sum(reads.values()) < 50, reads


def test_publishing_creates_no_consumer_group(engine: Engine, redis_url: str, key_prefix: str) -> None:
    """A group that no consumer reads would hold back trimming."""
    stream = f"{key_prefix}produced"
    add(engine, "x")

    with (
        redis.Redis.from_url(redis_url) as client,
        ToStream(client, stream) as target,
        OutboxRelay(engine, {"ledger": target}) as relay,
    ):
        relay.drain()

        assert client.xlen(stream) == 1
        assert client.xinfo_groups(stream) == []


def test_one_target_carries_many_events_with_their_emit_time(engine: Engine, redis_url: str, key_prefix: str) -> None:
    stream = f"{key_prefix}jobs"
    with DbSession(engine) as session:
        for event in ("order.paid", "order.sent", None):
            Outbox().add(session, "jobs", {"n": 1}, event=event)
        session.execute("UPDATE conquiet_outbox SET created_at = '2026-01-02 03:04:05.678'")

    with (
        redis.Redis.from_url(redis_url) as client,
        ToProcessor(client, stream, "order.other") as target,
        OutboxRelay(engine, {"jobs": target}) as relay,
    ):
        relay.drain()
        envelopes = [json.loads(fields[b"data"]) for _, fields in client.xrange(stream)]

    assert [one["event"] for one in envelopes] == ["order.paid", "order.sent", "order.other"]
    assert {one["emitted_ms"] for one in envelopes} == {1_767_323_045_678}


def test_a_message_without_an_event_is_parked_with_the_reason(engine: Engine, redis_url: str, key_prefix: str) -> None:
    add(engine, "x")

    with (
        redis.Redis.from_url(redis_url) as client,
        ToProcessor(client, f"{key_prefix}jobs") as target,
        OutboxRelay(engine, {"ledger": target}, max_attempts=1) as relay,
    ):
        relay.drain()

    (parked,) = Outbox().parked(engine)
    assert "no event" in parked.reason
