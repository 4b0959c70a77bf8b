"""Faults of the network and of the server: each causes one clear error and nothing hidden.

A fault proxy is in between; the statistics of the server count how often each command arrived. Every single command is
broken in ``test_faults_on_each_command``; these tests follow the messages, and disasters of the server.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
from tests.integration.queue.conftest import Connect
from tests.redis_clients import RawRedis

from conquiet.errors import GroupMissingError, QueueError
from conquiet.queue import QueueConsumer, RedisStreamsQueue
from conquiet.testing import FaultProxy, RedisServer, wait_until

Commands = Callable[[], dict[str, int]]
PendingOf = Callable[..., dict[str, tuple[str, int]]]


class MakeQueue(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> RedisStreamsQueue: ...


class MakeConsumer(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> QueueConsumer: ...


@pytest.fixture
def proxy(redis_url: str, fault_proxy: Callable[[str], FaultProxy]) -> FaultProxy:
    return fault_proxy(redis_url)


@pytest.fixture
def far_queue(make_queue: MakeQueue, connect: Connect, redis_url: str, proxy: FaultProxy) -> RedisStreamsQueue:
    """A queue behind the proxy, of a client that would retry."""
    return make_queue("alice", client=connect(proxy.url_for(redis_url)))


def test_an_add_whose_reply_is_lost_leaves_one_entry_and_raises(
    far_queue: RedisStreamsQueue, proxy: FaultProxy, raw: RawRedis, stream: str
) -> None:
    proxy.drop_next_reply(b"XADD")

    with pytest.raises(QueueError, match="may have taken effect") as caught:
        far_queue.enqueue({"n": 1})

    assert caught.value.in_doubt
    assert raw.xlen(stream) == 1


@pytest.mark.spec("RS-005.3", "RS-005.16", "RS-008.2")
@pytest.mark.parametrize("way", ["enqueue", "with a key", "enqueue_many"])
def test_an_add_that_waits_for_replicas_is_sent_once(
    far_queue: RedisStreamsQueue, proxy: FaultProxy, raw: RawRedis, stream: str, way: str
) -> None:
    ways: dict[str, Callable[[], object]] = {
        "enqueue": lambda: far_queue.enqueue({"n": 1}, replicas=1, replicas_timeout_s=0.1),
        "with a key": lambda: far_queue.enqueue({"n": 1}, idempotency_key="k", replicas=1, replicas_timeout_s=0.1),
        "enqueue_many": lambda: far_queue.enqueue_many([{"n": 1}], replicas=1, replicas_timeout_s=0.1),
    }
    raw.config_resetstat()
    proxy.drop_next_reply(b"XADD")

    with pytest.raises(QueueError, match="may have taken effect") as caught:
        ways[way]()

    assert caught.value.in_doubt
    assert raw.xlen(stream) == 1
    assert raw.info("commandstats")["cmdstat_xadd"]["calls"] == 1
    assert raw.info("commandstats").get("cmdstat_eval", {"calls": 0})["calls"] == (way != "enqueue")


def test_an_add_repeated_with_its_key_is_one_entry(
    far_queue: RedisStreamsQueue, proxy: FaultProxy, raw: RawRedis, stream: str
) -> None:
    proxy.drop_next_reply(b"EVAL")
    with pytest.raises(QueueError):
        far_queue.enqueue({"n": 1}, idempotency_key="k")

    message_id = far_queue.enqueue({"n": 1}, idempotency_key="k")

    assert [entry_id.decode() for entry_id, _ in raw.xrange(stream)] == [message_id]


@pytest.mark.spec("RS-002.10")
def test_a_read_whose_reply_is_lost_is_found_again_as_ones_own(
    far_queue: RedisStreamsQueue, proxy: FaultProxy, commands_of: Commands
) -> None:
    ids = far_queue.enqueue_many([{"n": 1}, {"n": 2}])
    proxy.drop_next_reply(b"XREADGROUP")

    with pytest.raises(QueueError):
        far_queue.read(100)

    assert commands_of()["xreadgroup"] == 1
    (again,) = far_queue.recover_own()
    assert (again.id, again.delivery_count) == (ids[0], 2)
    assert [message.id for message in far_queue.read(100)] == ids[1:]


def test_an_ack_whose_reply_is_lost_may_be_repeated(
    far_queue: RedisStreamsQueue, proxy: FaultProxy, pending: PendingOf
) -> None:
    far_queue.enqueue({"n": 1})
    (message,) = far_queue.read(100)
    proxy.drop_next_reply(b"XACK")
    with pytest.raises(QueueError):
        far_queue.ack(message)

    far_queue.ack(message)

    assert pending() == {}


def test_a_batch_whose_request_is_cut_adds_nothing(
    far_queue: RedisStreamsQueue, proxy: FaultProxy, raw: RawRedis, stream: str
) -> None:
    proxy.drop_next_request(b"EVAL")

    with pytest.raises(QueueError):
        far_queue.enqueue_many([{"n": n} for n in range(100)])

    assert raw.xlen(stream) == 0


def test_a_reply_that_never_comes_ends_after_the_timeout(
    make_queue: MakeQueue, connect: Connect, redis_url: str, proxy: FaultProxy
) -> None:
    """BLOCK counts on top: a read may wait longer than the timeout, a dead line may not."""
    queue = make_queue("alice", client=connect(proxy.url_for(redis_url)), command_timeout_s=1.5)
    started = time.monotonic()
    assert queue.read(2_600) == []
    assert time.monotonic() - started >= 2.5

    proxy.stall()
    with pytest.raises(QueueError):
        queue.read(100)  # while the line is still dead
    proxy.resume()


@pytest.mark.spec("QC-006.7", "QC-007.6", "QC-009.4", "QC-009.5", "QC-009.8", "RS-008.3", "RS-008.4")
def test_the_loop_ends_with_the_error_and_the_host_can_go_on(
    make_consumer: MakeConsumer, connect: Connect, redis_url: str, proxy: FaultProxy, commands_of: Commands
) -> None:
    consumer = make_consumer(client=connect(proxy.url_for(redis_url)), block_ms=200)
    consumer.queue.enqueue_many([{"n": 1}, {"n": 2}])
    messages = consumer.iter_messages()
    consumer.ack(next(messages))
    proxy.refuse()
    proxy.disconnect()

    with pytest.raises(QueueError) as caught:
        next(messages)
    assert type(caught.value) is QueueError  # one class for every fault of the network
    assert list(messages) == []  # the generator is over; nothing tries again behind our back
    seen = commands_of()["xreadgroup"]

    proxy.accept()
    assert next(consumer.iter_messages()).payload == {"n": 2}  # the host's decision
    assert commands_of()["xreadgroup"] == seen + 1


def test_a_connection_that_died_while_idle_is_replaced_before_anything_is_sent(
    far_queue: RedisStreamsQueue, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conquiet.redis_transport.connection._TRUSTED_IDLE_S", 0.0)
    far_queue.enqueue({"n": 1})
    proxy.disconnect()
    wait_until(lambda: proxy.counters.open_connections == 0)

    assert far_queue.enqueue({"n": 2})


# ---------------------------------------------------------------- the server's own disasters
@pytest.fixture
def blocked(make_consumer: MakeConsumer, raw: RawRedis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """A consumer blocked in a read, and in the same one until something happens; calling it gives how that ended."""
    monkeypatch.setattr("conquiet.queue.consumer.LONGEST_SLICE_MS", 300_000)
    consumer = make_consumer(block_ms=300_000)
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(consumer.next())
        except QueueError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: any("b" in one["flags"] for one in raw.client_list()), message="a blocked read")

    def ended() -> Any:
        thread.join(60)
        assert not thread.is_alive()
        return outcome[0]

    yield ended
    consumer.stop()
    thread.join(60)


@pytest.mark.parametrize("disaster", ["flushall", "del", "destroy"])
def test_a_group_lost_while_blocked_is_one_error_and_no_hot_loop(
    blocked: Callable[[], Any], raw: RawRedis, stream: str, commands_of: Commands, disaster: str
) -> None:
    before = commands_of().get("xreadgroup", 0)
    match disaster:
        case "flushall":
            raw.flushall()
        case "del":
            raw.delete(stream)
        case _:
            raw.xgroup_destroy(stream, "billing")

    error = blocked()

    assert isinstance(error, GroupMissingError), error
    assert commands_of().get("xreadgroup", 0) - before <= 2


def test_a_killed_connection_is_a_queue_error(blocked: Callable[[], Any], raw: RawRedis) -> None:
    (reader,) = [one for one in raw.client_list() if "b" in one["flags"]]
    raw.client_kill_filter(_id=reader["id"])

    error = blocked()

    assert type(error) is QueueError
    assert error.in_doubt


def test_client_unblock_is_not_taken_for_a_lost_group(blocked: Callable[[], Any], raw: RawRedis) -> None:
    (reader,) = [one for one in raw.client_list() if "b" in one["flags"]]
    raw.client_unblock(int(reader["id"]), error=True)

    error = blocked()

    assert type(error) is QueueError
    assert "UNBLOCKED" in str(error)


def test_a_key_of_another_type_is_a_queue_error(queue: RedisStreamsQueue, raw: RawRedis, stream: str) -> None:
    raw.delete(stream)
    raw.set(stream, "text")

    with pytest.raises(QueueError, match="WRONGTYPE"):
        queue.enqueue({"n": 1})


def test_a_restart_with_an_append_only_file_loses_nothing_that_was_answered(
    private_redis: Callable[..., RedisServer], connect: Connect, make_queue: MakeQueue
) -> None:
    server = private_redis(aof=True)
    queue = make_queue(client=connect(server.url))
    ids = queue.enqueue_many([{"n": n} for n in range(20)])
    taken = queue.read(100, 5)
    queue.ack(taken[0])

    server.kill()
    with pytest.raises(QueueError):
        queue.read(100)
    server.restart()

    assert [message.id for message in queue.recover_own()] == ids[1:5]
    assert [message.id for message in queue.read(100, 50)] == ids[5:]


def test_a_loading_or_full_server_refuses_and_leaves_no_doubt(
    private_redis: Callable[..., RedisServer], connect: Connect, make_queue: MakeQueue
) -> None:
    server = private_redis(extra_args=("--maxmemory", "3mb", "--maxmemory-policy", "noeviction"))
    queue = make_queue(client=connect(server.url))
    server.call("CONFIG", "SET", "maxmemory", "1")

    with pytest.raises(QueueError, match="OOM") as caught:
        queue.enqueue({"n": 1})
    with pytest.raises(QueueError, match="OOM") as batch:
        queue.enqueue_many([{"n": 1}, {"n": 2}])

    assert not caught.value.in_doubt
    assert not batch.value.in_doubt
    server.call("CONFIG", "SET", "maxmemory", "0")
    assert queue.backlog().length == 0


@pytest.mark.parametrize("how", ["xdel", "xtrim"])
def test_an_entry_deleted_before_it_was_read_is_not_delivered_as_empty(
    queue: RedisStreamsQueue, raw: RawRedis, stream: str, how: str
) -> None:
    ids = queue.enqueue_many([{"n": 1}, {"n": 2}])
    raw.xdel(stream, ids[0]) if how == "xdel" else raw.xtrim(stream, 1, approximate=False)

    assert [message.id for message in queue.read(100, 10)] == ids[1:]
