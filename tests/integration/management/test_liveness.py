"""A consumer is dead only if that is proved: live workers on quiet streams are never removed."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from sqlalchemy import StaticPool, create_engine

from conquiet.config import QueueConfig
from conquiet.errors import OperatorError
from conquiet.management import PendingFilter, RedisAdmin, describe_stream, list_pending, reclaim, remove_consumer
from conquiet.management.doctor.redis import RedisLimits, examine_redis
from conquiet.queue import QueueConsumer, RedisStreamsQueue
from conquiet.redis_transport.liveness import LIVENESS_TTL_MS, liveness_key, registry_key
from conquiet.runtime import Consumer, MessageContext, RuntimeMessage
from conquiet.testing import wait_until

MakeQueue = Callable[..., RedisStreamsQueue]
BRIEF_S = 0.2


@pytest.fixture
def quiet_queue_consumer(client: Redis, key_prefix: str) -> Iterator[str]:
    """The stream of a live ``QueueConsumer`` named alice, which waits in blocking reads that bring nothing."""
    stream = f"{key_prefix}orders"
    consumer = QueueConsumer(client, QueueConfig(stream, "billing", "alice", block_ms=5_000))
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    thread = threading.Thread(target=lambda: consumer.run(handler=lambda *_: None, engine=engine), daemon=True)
    thread.start()
    wait_until(lambda: bool(client.exists(stream)))
    yield stream
    consumer.stop()
    thread.join(30)
    assert not thread.is_alive()
    consumer.close()
    engine.dispose()


@pytest.fixture
def quiet_engine(redis_url: str, key_prefix: str, server: RedisAdmin) -> Iterator[str]:
    """The stream of a live ``runtime.Consumer`` named alice without work."""
    stream = f"{key_prefix}orders"

    async def handle(_message: RuntimeMessage, _ctx: MessageContext) -> None: ...

    async def work() -> None:
        async with AsyncRedis.from_url(redis_url) as client:
            consumer = Consumer(
                streams=[stream], redis=client, handler=handle, group="billing", consumer_id="alice", block_ms=5_000
            )
            engines.append(consumer)
            await consumer.start()

    engines: list[Consumer] = []
    thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
    thread.start()
    wait_until(lambda: bool(engines) and engines[0].health().ready)
    yield stream
    engines[0].stop()
    thread.join(30)
    assert not thread.is_alive()


def names(server: RedisAdmin, stream: str) -> list[str]:
    return [one.name for group in describe_stream(server, stream).groups for one in group.consumers]


def consumer_state(server: RedisAdmin, stream: str, alive_s: float) -> str:
    (group,) = describe_stream(server, stream, alive_s=alive_s).groups
    return group.consumers[0].state.value


@pytest.mark.parametrize("worker", ["quiet_queue_consumer", "quiet_engine"])
def test_a_live_worker_on_a_quiet_stream_is_not_removed(
    worker: str, request: pytest.FixtureRequest, client: Redis, server: RedisAdmin
) -> None:
    """Before Redis 7.2 its idle time grows like a dead consumer's."""
    stream: str = request.getfixturevalue(worker)
    client.xadd(stream, {"data": "{}"})  # makes the consumer known to the server
    wait_until(lambda: names(server, stream) == ["alice"])
    wait_until(lambda: (describe_stream(server, stream).groups[0].consumers[0].idle_s or 0) > BRIEF_S)

    with pytest.raises(OperatorError, match=r"is alive|is not proved dead|may be alive"):
        remove_consumer(server, stream, "billing", "alice", new_owner="bob", min_idle_s=BRIEF_S)

    assert names(server, stream) == ["alice"]
    assert consumer_state(server, stream, BRIEF_S) != "dead"


def test_a_live_worker_that_has_had_no_entry_is_listed(quiet_engine: str, client: Redis, server: RedisAdmin) -> None:
    """Before Redis 7.2 the server does not know it as a consumer, and an operator would take the stream for unread."""
    client.sadd(registry_key(quiet_engine, "billing"), "dead")  # registered, and its key has expired
    (group,) = describe_stream(server, quiet_engine).groups

    assert [(one.name, one.alive, one.pending) for one in group.consumers] == [("alice", True, 0)]


@pytest.fixture
def abandoned(make_queue: MakeQueue, server: RedisAdmin) -> str:
    """A stream with three entries pending for alice, who is gone for longer than ``BRIEF_S``."""
    queue = make_queue()
    queue.enqueue_many([{"n": number} for number in range(3)])
    queue.read(100, 3)
    stream = queue.config.stream_key
    wait_until(lambda: (describe_stream(server, stream).groups[0].consumers[0].idle_s or 0) > BRIEF_S)
    return stream


def test_a_liveness_key_is_proof_of_life_whatever_is_forced(client: Redis, newer: RedisAdmin, abandoned: str) -> None:
    client.set(liveness_key(abandoned, "billing", "alice"), "token", px=LIVENESS_TTL_MS)

    with pytest.raises(OperatorError, match="is alive: its worker keeps a liveness key"):
        remove_consumer(newer, abandoned, "billing", "alice", new_owner="bob", min_idle_s=0, force=True)

    assert names(newer, abandoned) == ["alice"]
    assert consumer_state(newer, abandoned, BRIEF_S) == "idle"


def test_the_key_of_another_consumer_proves_nothing(client: Redis, newer: RedisAdmin, abandoned: str) -> None:
    client.set(liveness_key(abandoned, "billing", "bob"), "token", px=LIVENESS_TTL_MS)
    client.set(liveness_key(abandoned, "mailing", "alice"), "token", px=LIVENESS_TTL_MS)

    assert consumer_state(newer, abandoned, BRIEF_S) == "dead"
    assert (
        remove_consumer(newer, abandoned, "billing", "alice", new_owner="bob", min_idle_s=0, force=True).transferred
        == 3
    )


def test_a_server_that_counts_no_attempts_needs_force(
    client: Redis, server: RedisAdmin, newer: RedisAdmin, abandoned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conquiet.redis_transport.replies.COUNTS_ATTEMPTS_SINCE", (999, 0))

    with pytest.raises(OperatorError, match=r"before Redis 7\.2 .* make sure that it is stopped, then give --force"):
        remove_consumer(server, abandoned, "billing", "alice", new_owner="bob", min_idle_s=BRIEF_S)
    assert consumer_state(server, abandoned, BRIEF_S) == "unknown"
    assert names(server, abandoned) == ["alice"]

    assert (
        remove_consumer(server, abandoned, "billing", "alice", new_owner="bob", min_idle_s=0, force=True).transferred
        == 3
    )


def test_less_than_a_minute_without_a_read_is_no_proof(newer: RedisAdmin, abandoned: str) -> None:
    with pytest.raises(OperatorError, match="is not proved dead by less than 60 s"):
        remove_consumer(newer, abandoned, "billing", "alice", new_owner="bob", min_idle_s=BRIEF_S)

    with pytest.raises(OperatorError, match="may be alive"):
        remove_consumer(newer, abandoned, "billing", "alice", new_owner="bob", min_idle_s=60)


def test_force_does_not_overrule_the_idle_time(newer: RedisAdmin, abandoned: str) -> None:
    with pytest.raises(OperatorError, match="may be alive"):
        remove_consumer(newer, abandoned, "billing", "alice", new_owner="bob", min_idle_s=3_600, force=True)

    assert names(newer, abandoned) == ["alice"]


def test_a_removal_keeps_the_idle_times_of_transferred_entries(
    client: Redis, newer: RedisAdmin, abandoned: str
) -> None:
    """An entry that counted as fresh would keep the next worker from claiming it."""
    rows: Any = client.xpending_range(abandoned, "billing", "-", "+", 10)
    for row in rows:
        client.xclaim(abandoned, "billing", "alice", 0, [row["message_id"]], idle=3_600_000, justid=True)

    remove_consumer(newer, abandoned, "billing", "alice", new_owner="bob", min_idle_s=0, force=True)

    handed: Any = client.xpending_range(abandoned, "billing", "-", "+", 10)
    assert [(row["consumer"], row["times_delivered"]) for row in handed] == [(b"bob", 1)] * 3
    assert all(row["time_since_delivered"] >= 3_600_000 for row in handed)


def test_dead_owners_are_only_those_that_are_proved_dead(
    server: RedisAdmin, newer: RedisAdmin, abandoned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_owners = PendingFilter(dead_owners_only=True)
    assert len(list_pending(newer, abandoned, "billing", dead_owners, alive_s=BRIEF_S)) == 3

    monkeypatch.setattr("conquiet.redis_transport.replies.COUNTS_ATTEMPTS_SINCE", (999, 0))
    monkeypatch.setattr("conquiet.management.pending.ALIVE_S", BRIEF_S)

    assert list_pending(server, abandoned, "billing", dead_owners, alive_s=BRIEF_S) == []
    assert {row.owner for row in list_pending(server, abandoned, "billing", alive_s=BRIEF_S)} == {"unknown"}
    assert reclaim(server, abandoned, "billing", dead_owners).ids == ()


def test_the_doctor_calls_nothing_dead_that_is_not_proved(
    server: RedisAdmin, newer: RedisAdmin, abandoned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = RedisLimits(alive_s=BRIEF_S)

    def said(where: RedisAdmin) -> list[str]:
        found = examine_redis(where, limits)
        return [
            one.what for one in found if one.check in {"redis.dead_consumers", "redis.lag"} and abandoned in one.what
        ]

    assert said(newer) == [
        f"1 dead consumers of '{abandoned}', group 'billing', hold 3 entries",
        f"group 'billing' of '{abandoned}' has 3 entries to do and no live consumer",
    ]
    monkeypatch.setattr("conquiet.redis_transport.replies.COUNTS_ATTEMPTS_SINCE", (999, 0))
    assert said(server) == [
        f"1 consumers of '{abandoned}', group 'billing', hold 3 entries and may be dead",
        f"group 'billing' of '{abandoned}' has 3 entries to do and no consumer that is known to be alive",
    ]
