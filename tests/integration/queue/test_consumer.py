"""QueueConsumer against a real server: seed 000 §2 to §10 and §12, seed 001 §6, seed 003 §6.4."""

import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import pytest
from sqlalchemy import create_engine
from tests.redis_clients import RawRedis

from conquiet.core.lifecycle import BlockingLifecycle, Status
from conquiet.errors import GroupMissingError, LifecycleError, MalformedMessageError, QueueError
from conquiet.queue import QueueConsumer, QueueWorker, RedisStreamsQueue
from conquiet.testing import FaultProxy, wait_until

PendingOf = Callable[..., dict[str, tuple[str, int]]]
Commands = Callable[[], dict[str, int]]


class MakeConsumer(Protocol):
    def __call__(self, consumer: str = "alice", **options: Any) -> QueueConsumer: ...


def blocked_readers(raw: RawRedis) -> int:
    return sum(1 for client in raw.client_list() if "b" in client["flags"])


class Waiting:
    """``next()`` in a thread, known to be blocked in the server."""

    def __init__(self, consumer: QueueConsumer, raw: RawRedis, block_ms: int = 300_000, *, batch: int = 0) -> None:
        self.outcome: Any = "still waiting"
        self._consumer, self._block_ms, self._batch = consumer, block_ms, batch
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_until(lambda: blocked_readers(raw), message="a blocked read")

    def _run(self) -> None:
        try:
            if self._batch:
                self.outcome = self._consumer.next_batch(self._batch, block_ms=self._block_ms)
            else:
                self.outcome = self._consumer.next(self._block_ms)
        except QueueError as error:
            self.outcome = error

    def end(self) -> None:
        """Wait for its end, for less long than the server would."""
        self._thread.join(60)
        assert not self._thread.is_alive()


def reads_of(consumer: QueueConsumer, then: Callable[[int], None] = lambda _: None) -> list[int]:
    """Record how long each read waits in the server; ``then`` is called with the number of reads that began."""
    reads: list[int] = []
    queue: Any = consumer.queue
    read = queue.read

    def noted(block_ms: int, count: int = 1) -> Any:
        reads.append(block_ms)
        then(len(reads))
        return read(block_ms, count)

    queue.read = noted
    return reads


# ---------------------------------------------------------------- next
@pytest.mark.spec(
    "QC-006.1", "QC-006.2", "QC-006.6", "RS-006.15", "RS-006.16", "RS-006.18", "QC-003.2", "RS-006.4", "CQ-006.28",
    "CQ-006.30", "CQ-006.40", "QC-004.4", "RS-006.8",
)  # fmt: skip
@pytest.mark.parametrize("block_ms", [None, 50, 1_500], ids=["as configured", "short", "in slices"])
def test_next_takes_one_message_and_leaves_the_others(
    consumer: QueueConsumer, pending: PendingOf, commands_of: Commands, block_ms: int | None
) -> None:
    ids = consumer.queue.enqueue_many([{"n": 1}, {"n": 2}, {"n": 3}])

    assert consumer.next(block_ms).id == ids[0]  # type: ignore[union-attr]
    assert list(pending()) == ids[:1]
    assert [consumer.next(block_ms).id, consumer.next(block_ms).id] == ids[1:]  # type: ignore[union-attr]
    assert commands_of()["xreadgroup"] == 3


@pytest.mark.spec("QC-006.3", "RS-006.17", "QC-006.4", "QC-006.5", "RS-006.19", "QC-003.4")
@pytest.mark.parametrize("way", ["next", "next_batch"])
def test_next_waits_in_the_server_as_long_as_asked_and_gives_none(
    consumer: QueueConsumer, commands_of: Commands, way: str
) -> None:
    started, used = time.monotonic(), time.process_time()

    if way == "next":
        assert consumer.next(block_ms=1500) is None
    else:
        assert consumer.next_batch(5, block_ms=1500) == []

    assert time.monotonic() - started >= 1.45
    assert commands_of()["xreadgroup"] <= 3  # a second each, and the rest
    assert time.process_time() - used < 0.5


@pytest.mark.spec("QC-006.8", "CQ-006.39")
def test_next_uses_the_configured_wait_when_none_is_given(make_consumer: MakeConsumer) -> None:
    consumer = make_consumer(block_ms=150)
    reads = reads_of(consumer)
    started = time.monotonic()

    assert consumer.next() is None
    assert consumer.next(None) is None
    assert consumer.next_batch(2) == consumer.next_batch(2, block_ms=None) == []

    assert reads == [150] * 4
    assert time.monotonic() - started >= 0.6


@pytest.mark.spec("QC-006.8", "CQ-006.39", "RS-005.20")
@pytest.mark.parametrize("bad", [0, -5, 1.5, "5", False])
def test_zero_is_an_error_and_not_the_default(consumer: QueueConsumer, commands_of: Commands, bad: Any) -> None:
    with pytest.raises(QueueError, match="positive int"):
        consumer.next(bad)

    assert "xreadgroup" not in commands_of()


def test_a_message_that_arrives_during_the_wait_ends_it_at_once(
    consumer: QueueConsumer,
    raw: RawRedis,
    queue: RedisStreamsQueue,
    commands_of: Commands,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("conquiet.queue.consumer.LONGEST_SLICE_MS", 300_000)  # no slice of the wait ends early
    waiting = Waiting(consumer, raw)

    message_id = queue.enqueue({"n": 1})

    waiting.end()
    assert waiting.outcome.id == message_id
    assert commands_of()["xreadgroup"] == 1


def test_a_malformed_entry_is_raised_once_and_the_next_call_reads_on(
    consumer: QueueConsumer, add_raw: Callable[..., str], pending: PendingOf
) -> None:
    bad = add_raw({"data": "oops"})
    good = consumer.queue.enqueue({"n": 1})

    with pytest.raises(MalformedMessageError) as caught:
        consumer.next()

    assert caught.value.message_id == bad
    assert consumer.next().id == good  # type: ignore[union-attr]
    assert set(pending()) == {bad, good}
    consumer.ack_id(bad)
    assert set(pending()) == {good}


# ---------------------------------------------------------------- iterating
@pytest.mark.spec(
    "QC-003.1", "QC-007.1", "QC-007.3", "RS-006.1", "RS-006.20", "RS-006.22", "CQ-006.45", "CQ-006.31", "QC-004.1",
    "RS-006.5", "QC-008.3", "QC-001.1",
)  # fmt: skip
def test_iterating_yields_until_stopped_and_acknowledges_nothing(consumer: QueueConsumer, pending: PendingOf) -> None:
    ids = consumer.queue.enqueue_many([{"n": n} for n in range(5)])
    got = []

    for message in consumer.iter_messages():
        got.append(message.id)
        if len(got) == 3:
            consumer.stop()

    assert got == ids[:3]
    assert list(pending()) == ids[:3]


@pytest.mark.spec("QC-007.2", "QC-007.4", "RS-006.21", "RS-006.23")
def test_iterating_waits_the_configured_time_in_each_read(make_consumer: MakeConsumer, commands_of: Commands) -> None:
    consumer = make_consumer(block_ms=200)

    def stop_at_the_fourth(begun: int) -> None:
        if begun == 4:
            consumer.stop()

    reads = reads_of(consumer, stop_at_the_fourth)
    used = time.process_time()

    assert list(consumer.iter_messages()) == []

    assert reads == [200] * 4
    assert commands_of()["xreadgroup"] == 4
    assert time.process_time() - used < 0.4


@pytest.mark.spec("QC-007.6", "QC-009.4", "QC-004.3", "RS-006.7")
def test_iterating_passes_every_exception_on(consumer: QueueConsumer, raw: RawRedis, stream: str) -> None:
    consumer.queue.enqueue({"n": 1})
    messages = consumer.iter_messages()
    next(messages)
    raw.delete(stream)

    with pytest.raises(GroupMissingError):
        next(messages)
    with pytest.raises(StopIteration):
        next(messages)


@pytest.mark.spec("QC-007.6", "QC-004.3", "RS-006.7")
def test_iterating_raises_a_malformed_entry_and_what_its_caller_raises(
    consumer: QueueConsumer, add_raw: Callable[..., str], pending: PendingOf
) -> None:
    good = consumer.queue.enqueue({"n": 1})
    bad = add_raw({"data": "oops"})
    consumer.queue.enqueue({"n": 2})
    messages = consumer.iter_messages()

    assert next(messages).id == good
    with pytest.raises(MalformedMessageError):
        next(messages)
    raised = LookupError()
    messages = consumer.iter_messages()
    next(messages)
    with pytest.raises(LookupError) as caught:
        messages.throw(raised)  # type: ignore[attr-defined]

    assert caught.value is raised
    assert len(pending()) == 3
    assert bad in pending()


# ---------------------------------------------------------------- stopping
@pytest.mark.spec(
    "QC-005.1", "QC-005.2", "RS-006.10", "RS-006.2", "QC-003.3", "CQ-006.32", "CQ-006.36", "CQ-006.37", "CQ-006.38",
    "QC-002.5",
)  # fmt: skip
def test_after_stop_nothing_is_read(consumer: QueueConsumer, commands_of: Commands) -> None:
    consumer.queue.enqueue({"n": 1})
    consumer.stop()
    consumer.stop()

    assert consumer.next() is None
    assert list(consumer.iter_messages()) == []
    assert "xreadgroup" not in commands_of()


def test_a_forced_stop_during_a_log_in_ends_run_without_an_error(
    make_consumer: MakeConsumer, connect: Callable[..., Any], fault_proxy: Callable[[str], FaultProxy], redis_url: str
) -> None:
    """Nothing failed: the log-in was aborted by the stop. The other workers end in the same way."""
    proxy = fault_proxy(redis_url)
    consumer = make_consumer(client=connect(proxy.url_for(redis_url)), command_timeout_s=60.0)
    proxy.stall()
    consumer.queue._connection._close_idle()  # as after a restart of the server
    before = proxy.counters.connections

    def stop_twice() -> None:
        wait_until(lambda: proxy.counters.connections > before)
        consumer.stop()
        consumer.stop()

    stopping = threading.Thread(target=stop_twice)
    stopping.start()
    consumer.run(handler=lambda msg, session: None, engine=create_engine("sqlite://"))
    stopping.join(10)

    assert consumer.health().status is Status.STOPPED


def test_a_third_stop_ends_an_acknowledgement_that_gets_no_reply(
    make_consumer: MakeConsumer, connect: Callable[..., Any], fault_proxy: Callable[[str], FaultProxy], redis_url: str
) -> None:
    """The second stop leaves the acknowledgement of a running handler time. The third one aborts it, too."""
    proxy = fault_proxy(redis_url)
    consumer = make_consumer(client=connect(proxy.url_for(redis_url)), command_timeout_s=60.0)
    consumer.queue.enqueue({"n": 1})
    proxy.stall_next_reply(b"XACK")

    def handle(_: object, __: object) -> None:
        consumer.stop()
        consumer.stop()

    def stop_again() -> None:
        proxy.wait_for_fault()
        consumer.stop()

    stopping = threading.Thread(target=stop_again)
    stopping.start()
    consumer.run(handler=handle, engine=create_engine("sqlite://"))
    stopping.join(10)

    assert consumer.health().status is Status.STOPPED


@pytest.mark.parametrize(
    "use",
    [
        lambda consumer, _: consumer.next(),
        lambda consumer, _: consumer.next_batch(2),
        lambda consumer, _: list(consumer.iter_messages()),
        lambda consumer, engine: consumer.run(handler=lambda msg, session: None, engine=engine),
        lambda consumer, engine: consumer.run_batches(handler=lambda msgs, session: None, engine=engine),
        lambda consumer, engine: consumer.run_claim_stale(handler=lambda msg, session: None, engine=engine),
    ],
    ids=["next", "next_batch", "iter_messages", "run", "run_batches", "run_claim_stale"],
)
def test_a_closed_consumer_refuses_to_read(
    consumer: QueueConsumer, use: Callable[[QueueConsumer, Any], object]
) -> None:
    """If it returned nothing, as after a stop, a loop around it would never end."""
    consumer.close()

    with pytest.raises(LifecycleError, match="closed"):
        use(consumer, create_engine("sqlite://"))


def test_a_stop_that_arrives_while_run_starts_ends_the_run(
    consumer: QueueConsumer, monkeypatch: pytest.MonkeyPatch, commands_of: Commands
) -> None:
    """A signal may arrive between any two steps; a failed start would look like a crash."""
    start = BlockingLifecycle.start

    def interrupted(lifecycle: BlockingLifecycle) -> None:
        consumer.stop()
        start(lifecycle)

    monkeypatch.setattr(BlockingLifecycle, "start", interrupted)
    consumer.run(handler=lambda msg, session: None, engine=create_engine("sqlite://"))

    assert consumer.health().status is Status.STOPPED
    assert "xreadgroup" not in commands_of()


@pytest.mark.spec("QC-005.2", "QC-007.5", "CQ-006.36")
@pytest.mark.parametrize("batch", [0, 5], ids=["next", "next_batch"])
def test_a_blocked_read_notices_stop_from_another_thread_within_a_second(
    consumer: QueueConsumer, raw: RawRedis, batch: int
) -> None:
    reads = reads_of(consumer)
    waiting = Waiting(consumer, raw, batch=batch)

    consumer.stop()
    begun = len(reads)

    waiting.end()
    assert waiting.outcome == ([] if batch else None)
    assert max(reads) <= 1_000
    assert len(reads) <= begun + 1  # one may have been on its way to the server


@pytest.mark.spec("QC-005.6", "RS-006.9", "CQ-006.35")
@pytest.mark.spec("CQ-001.13")
def test_sigterm_stops_a_blocked_consumer_whose_handlers_were_asked_for(
    make_consumer: MakeConsumer, raw: RawRedis
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    consumer = make_consumer(enable_signal_handlers=True)

    main = threading.get_ident()

    def send() -> None:
        wait_until(lambda: blocked_readers(raw))
        signal.pthread_kill(main, signal.SIGTERM)

    sender = threading.Thread(target=send)
    sender.start()
    assert list(consumer.iter_messages()) == []
    sender.join()

    consumer.close()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.spec("CQ-006.33", "CQ-006.35")
def test_no_signal_handler_is_touched_unless_asked_for(make_consumer: MakeConsumer) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    consumer = make_consumer()
    worker = QueueWorker(consumer, handler=lambda msg, session: None, engine=create_engine("sqlite://"))
    consumer.stop()
    worker.run()
    worker.close()

    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.spec(
    "QC-005.3", "QC-005.4", "QC-005.5", "QC-005.7", "QC-005.8", "RS-006.11", "RS-006.12", "RS-006.13", "RS-006.14",
    "RS-002.8",
)  # fmt: skip
@pytest.mark.spec("CQ-008.10")
def test_a_message_in_flight_at_the_stop_stays_pending_and_claimable(
    make_consumer: MakeConsumer, pending: PendingOf, commands_of: Commands
) -> None:
    alice, bob = make_consumer("alice"), make_consumer("bob")
    message_id = alice.queue.enqueue({"n": 1})
    alice.next()

    alice.stop()
    alice.close()

    assert pending() == {message_id: ("alice", 1)}
    assert {"xack", "xclaim", "xautoclaim"}.isdisjoint(commands_of())
    (message,) = wait_until(lambda: bob.claim_stale(min_idle_ms=1))  # a millisecond may still have to pass
    assert (message.id, message.delivery_count) == (message_id, 2)


# ---------------------------------------------------------------- acknowledging
@pytest.mark.spec("QC-008.1", "QC-008.2", "RS-006.24", "RS-006.25")
@pytest.mark.spec("CQ-001.10")
def test_acknowledging_is_the_users_own_call(
    consumer: QueueConsumer, pending: PendingOf, commands_of: Commands
) -> None:
    consumer.queue.enqueue({"n": 1})
    message = consumer.next()
    assert message is not None
    assert "xack" not in commands_of()

    consumer.ack(message)

    assert pending() == {}


@pytest.mark.parametrize("wrong", [None, "1700000000000-0"])
def test_acknowledging_something_else_than_a_message_is_refused(
    consumer: QueueConsumer, commands_of: Commands, wrong: Any
) -> None:
    for settle in (consumer.ack, consumer.extend, lambda msg: consumer.queue.ack_many([msg])):
        with pytest.raises(QueueError, match=r"needs a message of this queue, got a .*Nothing was sent"):
            settle(wrong)

    assert not {"xack", "eval"} & set(commands_of())


# ---------------------------------------------------------------- recovery is explicit
@pytest.mark.spec(
    "QC-008.4", "QC-010.1", "QC-010.11", "QC-002.1", "RS-002.1", "RS-002.2", "RS-002.9", "RS-006.26", "CQ-006.46",
    "QC-013.1",
)  # fmt: skip
def test_an_unacknowledged_message_comes_back_only_by_claiming(make_consumer: MakeConsumer) -> None:
    alice, bob = make_consumer("alice"), make_consumer("bob")
    message_id = alice.queue.enqueue({"n": 1})
    assert alice.next().id == message_id  # type: ignore[union-attr]

    assert alice.next(block_ms=50) is None
    assert bob.next(block_ms=50) is None

    (again,) = bob.claim_stale(min_idle_ms=1)
    assert (again.id, again.payload, again.delivery_count) == (message_id, {"n": 1}, 2)


@pytest.mark.spec("CQ-006.44", "QC-004.5", "RS-006.27")
def test_claiming_uses_the_configured_idle_time_and_nothing_times_out_by_itself(
    make_consumer: MakeConsumer, raw: RawRedis, stream: str
) -> None:
    alice, bob = make_consumer("alice"), make_consumer("bob", claim_idle_ms=600_000)
    message_id = alice.queue.enqueue({"n": 1})
    alice.next()

    def let_it_lie(idle_ms: int) -> None:
        raw.xclaim(stream, "billing", "alice", 0, [message_id], idle=idle_ms, justid=True)

    assert bob.claim_stale() == []
    let_it_lie(300_000)
    assert bob.claim_stale() == []
    let_it_lie(600_000)
    assert bob.claim_stale()[0].payload == {"n": 1}


@pytest.mark.spec(
    "QC-002.3", "QC-002.4", "QC-004.2", "QC-004.6", "QC-004.7", "QC-004.8", "QC-004.9", "QC-009.8", "QC-010.3",
    "QC-010.4", "QC-010.5", "QC-010.6", "QC-010.8", "QC-010.12", "QC-012.1", "QC-012.2", "QC-012.3", "QC-012.7",
    "RS-005.38", "RS-006.6", "CQ-006.29",
)  # fmt: skip
def test_the_loop_sends_only_reads_and_acks_despite_stale_entries(
    make_consumer: MakeConsumer, pending: PendingOf, commands_of: Commands
) -> None:
    """No thread, no claim, no health check, no polling: seen from the server."""
    alice, bob = make_consumer("alice"), make_consumer("bob", claim_idle_ms=1)
    alice.queue.enqueue({"stale": True})
    alice.next()
    bob.queue.enqueue_many([{"n": n} for n in range(30)])
    threads = threading.active_count()
    before = commands_of()

    for count, message in enumerate(bob.iter_messages(), start=1):
        bob.ack(message)
        if count == 30:
            bob.stop()

    after = commands_of()
    spent = {name: calls - before.get(name, 0) for name, calls in after.items() if name != "info"}
    assert {name: calls for name, calls in spent.items() if calls} == {"xreadgroup": 30, "xack": 30}
    assert threading.active_count() == threads
    assert [owner for owner, _ in pending().values()] == ["alice"]


def test_recovering_ones_own_and_extending_go_through_the_queue(make_consumer: MakeConsumer) -> None:
    alice = make_consumer("alice")
    alice.queue.enqueue({"n": 1})
    alice.next()

    (message,) = alice.recover_own()

    assert message.delivery_count == 2
    assert alice.extend(message)
    assert alice.backlog().pending == 1


# ---------------------------------------------------------------- attributes
@pytest.mark.spec("CQ-006.34")
def test_the_consumer_keeps_its_queue_and_config(consumer: QueueConsumer) -> None:
    assert isinstance(consumer.queue, RedisStreamsQueue)
    assert consumer.queue.config is consumer.config
