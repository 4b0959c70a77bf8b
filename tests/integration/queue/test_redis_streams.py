"""RedisStreamsQueue against a real server: seed 001 §2, §3, §5 and seed 003 §6."""

import inspect
import json
import logging
from collections.abc import Callable
from typing import Any, Protocol

import pytest
import redis
from tests.integration.queue.conftest import Connect
from tests.redis_clients import RawRedis

from conquiet.config import QueueConfig
from conquiet.errors import (
    ConfigurationError,
    GroupMissingError,
    LifecycleError,
    MalformedMessageError,
    PayloadError,
    QueueError,
)
from conquiet.queue import MessageBatch, QueueMessage, RedisStreamsQueue, StreamProducer
from conquiet.queue.producer import LONGEST_WINDOW_S, MAX_BATCH
from conquiet.testing import wait_until

PendingOf = Callable[..., dict[str, tuple[str, int]]]
Commands = Callable[[], dict[str, int]]


class MakeQueue(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> RedisStreamsQueue: ...


# ---------------------------------------------------------------- the group
@pytest.mark.spec("RS-005.7", "RS-005.8", "RS-001.1", "CQ-006.7")
def test_the_first_queue_creates_the_group_which_sees_earlier_entries(
    make_queue: MakeQueue, raw: RawRedis, stream: str
) -> None:
    raw.xadd(stream, {"data": '{"early": true}'})

    queue = make_queue()

    assert [group["name"] for group in raw.xinfo_groups(stream)] == [b"billing"]
    assert queue.read(100)[0].payload == {"early": True}


@pytest.mark.spec("RS-005.7", "CQ-006.7")
def test_creating_the_group_creates_the_stream(make_queue: MakeQueue, raw: RawRedis, stream: str) -> None:
    make_queue()

    assert raw.type(stream) == b"stream"
    assert raw.xinfo_groups(stream)[0]["last-delivered-id"] == b"0-0"


@pytest.mark.spec("RS-005.9", "CQ-006.8")
def test_a_group_that_is_there_already_is_taken_as_it_is(make_queue: MakeQueue, raw: RawRedis, stream: str) -> None:
    make_queue("alice").enqueue({"n": 1})
    make_queue("alice").read(100)

    make_queue("bob")

    assert raw.xinfo_groups(stream)[0]["entries-read"] in {1, None}


@pytest.mark.spec("RS-005.10", "CQ-006.8", "RS-008.1")
def test_another_refusal_of_the_group_is_raised(make_queue: MakeQueue, raw: RawRedis, stream: str) -> None:
    raw.set(stream, "not a stream")

    with pytest.raises(QueueError, match=r"XGROUP CREATE.*WRONGTYPE") as caught:
        make_queue()

    assert caught.value.command == "XGROUP CREATE"


@pytest.mark.spec("RS-005.10", "RS-005.9", "CQ-006.8", "RS-008.1")
def test_only_a_group_that_is_there_is_no_error(connect: Connect, raw: RawRedis, stream: str, closed_port: int) -> None:
    """A refusal by rights and an unavailable server, with and without the group: each is raised."""
    raw.execute_command("ACL", "SETUSER", "narrow", "on", "nopass", "~*", "+@all", "-xgroup")
    clients = connect(username="narrow", password="any"), redis.Redis(port=closed_port)

    for _ in ("not there", "there"):
        for client, said in zip(clients, ("NOPERM", "was not sent"), strict=True):
            with pytest.raises(QueueError, match=said) as caught:
                RedisStreamsQueue(client, QueueConfig(stream, "billing", "alice"))
            assert caught.value.command == "XGROUP CREATE"
        RedisStreamsQueue(connect(), QueueConfig(stream, "billing", "alice")).close()
    raw.execute_command("ACL", "DELUSER", "narrow")


@pytest.mark.spec("RS-005.11")
def test_a_lost_group_is_an_error_and_is_not_created_again(
    queue: RedisStreamsQueue, raw: RawRedis, stream: str, commands_of: Commands
) -> None:
    raw.xgroup_destroy(stream, "billing")

    for _ in range(3):
        with pytest.raises(GroupMissingError) as caught:
            queue.read(50)
        assert (caught.value.stream, caught.value.group) == (stream, "billing")

    assert raw.xinfo_groups(stream) == []
    assert commands_of()["xreadgroup"] == 3


@pytest.mark.parametrize(
    "ask",
    [
        lambda queue: queue.read(50),
        lambda queue: queue.recover_own(),
        lambda queue: queue.claim_stale(1),
        lambda queue: queue.backlog(),
    ],
    ids=["read", "recover_own", "claim_stale", "backlog"],
)
@pytest.mark.parametrize("lost", ["group", "stream"])
def test_every_call_on_a_lost_group_raises(
    queue: RedisStreamsQueue, raw: RawRedis, stream: str, ask: Callable[[RedisStreamsQueue], object], lost: str
) -> None:
    raw.delete(stream) if lost == "stream" else raw.xgroup_destroy(stream, "billing")

    with pytest.raises(GroupMissingError):
        ask(queue)


# ---------------------------------------------------------------- writing
@pytest.mark.spec(
    "RS-005.12", "RS-005.13", "RS-005.14", "RS-005.15", "RS-003.1", "RS-003.2", "RS-003.3", "RS-003.4",
    "CQ-006.4", "CQ-006.9",
)  # fmt: skip
def test_enqueue_adds_one_field_of_json_and_gives_the_id(queue: RedisStreamsQueue, raw: RawRedis, stream: str) -> None:
    message_id = queue.enqueue({"order": 7, "who": "Zoë"})

    ((stored_id, fields),) = raw.xrange(stream)
    assert stored_id.decode() == message_id
    assert list(fields) == [b"data"]
    assert json.loads(fields[b"data"].decode("utf-8")) == {"order": 7, "who": "Zoë"}


@pytest.mark.spec("RS-005.16", "RS-005.3")
def test_one_enqueue_is_one_command(queue: RedisStreamsQueue, commands_of: Commands) -> None:
    queue.enqueue({"n": 1})

    assert commands_of()["xadd"] == 1


@pytest.mark.spec("RS-003.6", "RS-003.7", "CQ-006.3")
@pytest.mark.parametrize("bad", [{"x": b"bytes"}, {"x": float("nan")}, {1: "x"}, {"x": object()}, ["x"], "x", None])
def test_a_payload_that_is_not_a_json_object_is_refused_before_sending(
    queue: RedisStreamsQueue, connect: Connect, stream: str, commands_of: Commands, bad: Any
) -> None:
    with StreamProducer(connect(), stream) as producer:
        doors: list[Callable[[], object]] = [
            lambda: queue.enqueue(bad),
            lambda: queue.enqueue(bad, idempotency_key="k"),
            lambda: queue.enqueue_many([{"n": 1}, bad]),
            lambda: producer.enqueue(bad),
            lambda: producer.enqueue_many([{"n": 1}, bad]),
        ]
        for door in doors:
            with pytest.raises(PayloadError) as caught:
                door()
            assert caught.value.reason
            assert "bytes" not in str(caught.value)

    assert {"xadd", "eval"}.isdisjoint(commands_of())


def test_a_refused_payload_is_named_by_its_path_and_not_shown(queue: RedisStreamsQueue) -> None:
    for add in (queue.enqueue, lambda payload: queue.enqueue_many([{}, payload])):
        with pytest.raises(PayloadError, match=r", at order\.items\[1\]") as caught:
            add({"order": {"items": [1, {"secret"}]}})
        assert caught.value.path == "order.items[1]"
        assert "secret" not in str(caught.value)


def test_a_payload_over_the_limit_is_refused(make_queue: MakeQueue) -> None:
    queue = make_queue(max_payload_bytes=20)

    queue.enqueue({"n": "fits"})
    with pytest.raises(PayloadError, match="max_payload_bytes"):
        queue.enqueue({"n": "does not fit at all"})


def test_enqueue_many_adds_all_in_order_in_one_step(
    queue: RedisStreamsQueue, raw: RawRedis, stream: str, commands_of: Commands
) -> None:
    ids = queue.enqueue_many({"n": n} for n in range(250))

    stored = raw.xrange(stream)
    assert [entry_id.decode() for entry_id, _ in stored] == ids
    assert [json.loads(fields[b"data"])["n"] for _, fields in stored] == list(range(250))
    assert commands_of()["eval"] == 1


def test_enqueue_many_adds_nothing_if_one_payload_is_refused(
    queue: RedisStreamsQueue, raw: RawRedis, stream: str
) -> None:
    with pytest.raises(PayloadError):
        queue.enqueue_many([{"n": 1}, {"n": float("inf")}, {"n": 3}])

    assert raw.xlen(stream) == 0


def test_enqueue_many_adds_nothing_if_the_server_refuses(queue: RedisStreamsQueue, raw: RawRedis, stream: str) -> None:
    raw.delete(stream)
    raw.set(stream, "not a stream")

    with pytest.raises(QueueError, match="WRONGTYPE"):
        queue.enqueue_many([{"n": 1}, {"n": 2}])
    raw.delete(stream)
    assert len(queue.enqueue_many([{"n": 1}])) == 1  # the connection has no reply left over


def test_enqueue_many_of_nothing_sends_nothing_and_of_too_many_is_refused(
    queue: RedisStreamsQueue, commands_of: Commands
) -> None:
    assert queue.enqueue_many([]) == []
    with pytest.raises(QueueError, match="at most"):
        queue.enqueue_many([{}] * (MAX_BATCH + 1))

    assert "eval" not in commands_of()


# ---------------------------------------------------------------- idempotency keys
def test_one_key_adds_one_entry_and_gives_its_id_to_everyone(
    queue: RedisStreamsQueue, make_queue: MakeQueue, raw: RawRedis, stream: str
) -> None:
    first = queue.enqueue({"pay": 5, "to": "x"}, idempotency_key="invoice 7")
    again = make_queue("bob").enqueue({"to": "x", "pay": 5}, idempotency_key="invoice 7")
    other = queue.enqueue({"pay": 5, "to": "x"}, idempotency_key="invoice 8")

    assert first == again != other
    assert raw.xlen(stream) == 2
    assert queue.read(100)[0].payload == {"pay": 5, "to": "x"}


def test_a_key_used_for_another_payload_is_an_error(queue: RedisStreamsQueue, raw: RawRedis, stream: str) -> None:
    queue.enqueue({"pay": 5}, idempotency_key="invoice 7")

    with pytest.raises(PayloadError, match="used before"):
        queue.enqueue({"pay": 6}, idempotency_key="invoice 7")

    assert raw.xlen(stream) == 1


def test_a_key_is_forgotten_after_its_window_and_never_stored_in_clear(
    queue: RedisStreamsQueue, raw: RawRedis, stream: str
) -> None:
    queue.enqueue({"n": 1}, idempotency_key="jane@example.org", idempotency_window_s=30)

    (mark,) = set(raw.keys()) - {stream.encode()}
    assert b"jane" not in mark
    assert 25_000 < raw.pttl(mark) <= 30_000
    raw.delete(mark)
    queue.enqueue({"n": 1}, idempotency_key="jane@example.org")
    assert raw.xlen(stream) == 2


def test_a_window_that_redis_cannot_keep_is_refused(queue: RedisStreamsQueue, raw: RawRedis, stream: str) -> None:
    for window_s in (1e16, LONGEST_WINDOW_S + 1):
        with pytest.raises(ConfigurationError, match="ten years"):
            queue.enqueue({"n": 1}, idempotency_key="k", idempotency_window_s=window_s)

    assert raw.xlen(stream) == 0
    assert queue.enqueue({"n": 1}, idempotency_key="k", idempotency_window_s=LONGEST_WINDOW_S)


@pytest.mark.parametrize("key", ["", 5, "new\nline"])
def test_a_key_that_is_no_text_is_refused(queue: RedisStreamsQueue, key: Any) -> None:
    with pytest.raises(ConfigurationError):
        queue.enqueue({"n": 1}, idempotency_key=key)


# ---------------------------------------------------------------- reading
@pytest.mark.spec("RS-005.17", "RS-005.18", "RS-005.22", "CQ-006.12", "CQ-006.13", "CQ-006.14", "CQ-006.2")
def test_read_gives_new_messages_and_makes_them_pending(
    queue: RedisStreamsQueue, stream: str, pending: PendingOf
) -> None:
    message_id = queue.enqueue({"n": 1})

    (message,) = queue.read(100)

    assert message == QueueMessage(stream, "billing", message_id, {"n": 1})
    assert isinstance(message.id, str)
    assert message.delivery_count == 1
    assert pending() == {message_id: ("alice", 1)}
    assert queue.read(20) == []


@pytest.mark.spec("RS-005.2", "RS-005.23")
def test_an_empty_read_is_an_empty_list_after_exactly_one_command(
    queue: RedisStreamsQueue, commands_of: Commands
) -> None:
    assert queue.read(1500) == []

    assert commands_of()["xreadgroup"] == 1


@pytest.mark.spec("RS-005.19", "RS-005.20", "CQ-003.6", "CQ-006.11")
@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "5", None])
def test_read_takes_positive_ints_only(queue: RedisStreamsQueue, commands_of: Commands, bad: Any) -> None:
    with pytest.raises(QueueError, match="block_ms"):
        queue.read(bad)
    with pytest.raises(QueueError, match="count"):
        queue.read(100, bad)

    assert "xreadgroup" not in commands_of()


@pytest.mark.spec("CQ-006.11")
def test_read_has_no_default_that_waits_without_limit() -> None:
    assert inspect.signature(RedisStreamsQueue.read).parameters["block_ms"].default is inspect.Parameter.empty


@pytest.mark.spec("RS-005.21", "RS-002.4", "CQ-006.12")
def test_count_is_an_upper_bound_and_ids_come_in_order(queue: RedisStreamsQueue) -> None:
    ids = queue.enqueue_many([{"n": n} for n in range(5)])

    assert [message.id for message in queue.read(100, 3)] == ids[:3]
    assert [message.id for message in queue.read(100, 3)] == ids[3:]


@pytest.mark.spec("RS-005.5")
def test_nothing_is_read_ahead(queue: RedisStreamsQueue, pending: PendingOf) -> None:
    queue.enqueue_many([{"n": 1}, {"n": 2}])

    queue.read(100)

    assert len(pending()) == 1


@pytest.mark.spec("RS-001.2", "RS-002.11")
@pytest.mark.spec("CQ-001.9", "CQ-008.9")
def test_two_consumers_never_own_one_entry(make_queue: MakeQueue) -> None:
    alice, bob = make_queue("alice"), make_queue("bob")
    ids = set(alice.enqueue_many([{"n": n} for n in range(40)]))

    got = [[message.id for message in owner.read(100, 1)] for _ in range(20) for owner in (alice, bob)]

    assert sorted(message_id for ids in got for message_id in ids) == sorted(ids)


# ---------------------------------------------------------------- malformed entries
@pytest.mark.spec("RS-003.1", "RS-003.2", "RS-003.3", "RS-003.5", "RS-003.6", "RS-003.7", "CQ-006.10")
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"other": "{}"}, "not named data"),
        ({"data": "{}", "more": "x"}, "exactly one field"),
        ({"data": b"\xff\xfe{}"}, "not JSON"),
        ({"data": b'{"a":"\xff"}'}, "UTF-8"),
        ({"data": "secret-oops"}, "not JSON"),
        ({"data": "[1]"}, "not a JSON object"),
        ({"data": '{"a": NaN}'}, "not JSON"),
        ({"data": '{"a": 1e999}'}, "out of range"),
        ({"data": '{"a":' * 100_000}, "deep"),
        ({"data": '{"a": "%s"}' % ("x" * 2_000_000)}, "max_payload_bytes"),
    ],
)
def test_a_malformed_entry_is_an_error_with_its_id_and_stays_pending(
    queue: RedisStreamsQueue,
    add_raw: Callable[..., str],
    pending: PendingOf,
    fields: dict[Any, Any],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    message_id = add_raw(fields)

    with caplog.at_level(logging.DEBUG), pytest.raises(MalformedMessageError, match=reason) as caught:
        queue.read(100)

    assert caught.value.message_id == message_id
    assert caught.value.message_ids == (message_id,)
    assert list(pending()) == [message_id]
    assert "secret" not in str(caught.value) + repr(caught.value) + caplog.text
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    queue.ack_id(message_id)
    assert pending() == {}


def test_valid_messages_of_a_batch_are_delivered_and_malformed_ones_named(
    queue: RedisStreamsQueue, add_raw: Callable[..., str], pending: PendingOf, caplog: pytest.LogCaptureFixture
) -> None:
    good = queue.enqueue({"n": 1})
    bad = add_raw({"data": "oops"})
    also_good = queue.enqueue({"n": 2})

    batch = queue.read(100, 10)

    assert [message.id for message in batch] == [good, also_good]
    assert [error.message_id for error in batch.malformed] == [bad]
    assert batch.last_id == also_good
    assert set(pending()) == {good, bad, also_good}
    assert [record.__dict__["message_id"] for record in caplog.records] == [bad]


def test_a_batch_of_malformed_entries_only_is_an_error_naming_them(
    queue: RedisStreamsQueue, add_raw: Callable[..., str]
) -> None:
    ids = tuple(add_raw({"data": "oops"}) for _ in range(3))

    with pytest.raises(MalformedMessageError, match="all 3 entries") as caught:
        queue.read(100, 10)

    assert caught.value.message_ids == ids
    assert caught.value.message_id == ids[0]


# ---------------------------------------------------------------- acknowledging
@pytest.mark.spec("RS-005.24", "RS-005.25", "CQ-006.15")
def test_ack_ends_the_pending_entry_with_one_command(
    queue: RedisStreamsQueue, pending: PendingOf, commands_of: Commands
) -> None:
    queue.enqueue({"n": 1})
    (message,) = queue.read(100)

    queue.ack(message)

    assert pending() == {}
    assert commands_of()["xack"] == 1


@pytest.mark.spec("RS-005.26")
def test_acknowledging_twice_is_allowed_and_said_in_the_log(
    queue: RedisStreamsQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue({"n": 1})
    (message,) = queue.read(100)
    queue.ack(message)

    with caplog.at_level(logging.INFO):
        queue.ack(message)

    assert [record.getMessage()[:43] for record in caplog.records] == ["acknowledged a message that was not pending"]


def test_a_message_of_another_stream_or_group_is_not_acknowledged_here(
    queue: RedisStreamsQueue, commands_of: Commands
) -> None:
    for message in (QueueMessage("other", "billing", "1-1", {}), QueueMessage(queue.config.stream_key, "x", "1-1", {})):
        with pytest.raises(QueueError, match="not this queue's"):
            queue.ack(message)
    with pytest.raises(QueueError, match="entry id"):
        queue.ack_id("1-1 2-2")

    assert "xack" not in commands_of()


@pytest.mark.spec("RS-005.27", "QC-008.5")
def test_a_refused_ack_is_raised(queue: RedisStreamsQueue, raw: RawRedis, stream: str) -> None:
    queue.enqueue({"n": 1})
    (message,) = queue.read(100)
    raw.delete(stream)
    raw.set(stream, "x")

    with pytest.raises(QueueError, match=r"XACK.*WRONGTYPE"):
        queue.ack(message)


# ---------------------------------------------------------------- what is not done
@pytest.mark.spec(
    "RS-001.3", "RS-001.4", "RS-001.7", "RS-001.8", "RS-001.9", "RS-005.1", "RS-005.6", "RS-001.5", "RS-001.6",
    "QC-012.3",
)  # fmt: skip
def test_a_message_costs_three_commands_and_touches_one_key(
    queue: RedisStreamsQueue, raw: RawRedis, stream: str, commands_of: Commands
) -> None:
    """No trimming, no clean-up, no dead letters, no polling: the server saw nothing else."""
    for n in range(20):
        queue.enqueue({"n": n})
        queue.ack(queue.read(100)[0])

    seen = commands_of()
    ours = {name: calls for name, calls in seen.items() if name not in {"info", "config|resetstat"}}
    assert ours == {"xadd": 20, "xreadgroup": 20, "xack": 20}
    assert raw.keys() == [stream.encode()]
    assert raw.xlen(stream) == 20
    assert [row["name"] for row in raw.xinfo_consumers(stream, "billing")] == [b"alice"]


@pytest.mark.spec("RS-005.4")
def test_the_queue_leaves_signals_alone(make_queue: MakeQueue) -> None:
    import signal

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    make_queue()

    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.spec("CQ-006.5", "CQ-006.6", "CQ-006.27")
def test_the_queue_keeps_client_and_config_and_needs_no_consumer(connect: Connect, stream: str) -> None:
    client, config = connect(), QueueConfig(stream, "billing", "alice")

    with RedisStreamsQueue(client, config) as queue:
        assert (queue.redis, queue.config) == (client, config)
        queue.enqueue({"n": 1})
        assert isinstance(queue.read(100), MessageBatch)


def connections_named(raw: RawRedis, name: str) -> int:
    return sum(1 for one in raw.client_list() if one["name"] == name)


@pytest.mark.spec("CQ-001.5", "CQ-001.15")
def test_leaving_closes_what_we_opened_and_nothing_else(connect: Connect, stream: str, raw: RawRedis) -> None:
    client = connect(client_name="leaving")
    client.ping()

    with RedisStreamsQueue(client, QueueConfig(stream, "billing", "alice")) as queue:
        queue.enqueue({"n": 1})
        assert connections_named(raw, "leaving") == 2

    wait_until(lambda: connections_named(raw, "leaving") == 1, message="only the caller's connection")
    assert client.ping()
    with pytest.raises(LifecycleError):
        queue.enqueue({"n": 2})
    queue.close()


def test_a_constructor_that_fails_leaves_no_connection(connect: Connect, raw: RawRedis, stream: str) -> None:
    raw.set(stream, "x")

    with pytest.raises(QueueError):
        RedisStreamsQueue(connect(client_name="failing"), QueueConfig(stream, "billing", "alice"))

    wait_until(lambda: connections_named(raw, "failing") == 0, message="no connection left")


def test_repr_of_a_message_shows_no_payload(queue: RedisStreamsQueue) -> None:
    queue.enqueue({"iban": "DE00"})

    assert "DE00" not in repr(queue.read(100))


def test_server_errors_are_not_quoted(connect: Connect, stream: str, raw: RawRedis, queue: RedisStreamsQueue) -> None:
    """``unknown command … with args beginning with`` quotes the payload."""
    raw.execute_command("ACL", "SETUSER", "narrow", "on", "nopass", "~*", "+@all", "-xadd")
    narrow = connect(username="narrow", password="any")
    with (
        RedisStreamsQueue(narrow, QueueConfig(stream, "billing", "alice")) as limited,
        pytest.raises(QueueError, match="NOPERM") as caught,
    ):
        limited.enqueue({"iban": "DE00"})
    raw.execute_command("ACL", "DELUSER", "narrow")

    assert "DE00" not in str(caught.value)
    assert isinstance(caught.value.__cause__, redis.exceptions.ResponseError)
