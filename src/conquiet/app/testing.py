"""``TestApp``: an application in memory, with a test clock. No Redis is needed.

    async with TestApp(app) as t:
        await t.emit("order.paid", OrderPaid("1", 500))
        await t.drain()                       # runs due messages, and the messages that they emit
        t.clock.advance(3600)                 # an hour passes with the next drain
        await t.drain()
        assert t.dead_letters == []

The rules are the functions of the real engines: ``HandlerRunner`` calls handlers with a real ``JobContext``, ``decide``
settles failures, ``plan_fires`` decides about schedules, and inbox and outbox are tables of the app's database.
Handlers run one after the other, in the order in which messages are due. Queues of RabbitMQ are in memory as well:
``await t.publish("crm-sync", {…})``.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self, Unpack

from conquiet.app.application import App
from conquiet.app.emission import AppEmitOptions
from conquiet.app.emitting import AppWaitOptions
from conquiet.app.memory_broker import EmittedMessage, MemoryBroker, TestClock, read_fields
from conquiet.app.memory_leases import MemoryLeases, ending
from conquiet.core.batch_run import BatchRun
from conquiet.core.batching import batch_settings
from conquiet.core.clock import SYSTEM_CLOCK
from conquiet.core.functions import reject_unawaited
from conquiet.core.json_codec import CodecError
from conquiet.core.settlement import RetryLater
from conquiet.core.signatures import takes_keywords_of
from conquiet.errors import ConfigurationError, InfrastructureError, JobCancelledError, MessageInProgressError
from conquiet.processor.batch_handler_runner import BatchHandlerRunner, runner_class
from conquiet.processor.dead_letter_record import DeadRecord, describe
from conquiet.processor.envelope import Envelope
from conquiet.processor.policy import decide
from conquiet.processor.results import CANCELLED, DEAD, SUCCEEDED, Progress, ResultQuestions, encode_value
from conquiet.processor.settings import HandlerSettings

if TYPE_CHECKING:
    from conquiet.app.memory_queues import MemoryQueues
    from conquiet.processor.handler_runner import HandlerRunner
    from conquiet.runtime.context import MessageContext
    from conquiet.scheduler.entries import ScheduleEntry
    from conquiet.scheduler.misfires import FirePlan
    from conquiet.transactional.relay import OutboxRelay

_MS = 1_000
_THREADS = 8


class TestApp:
    """Run an application in memory while the ``async with`` block runs.

    Tables of inbox and outbox are created in the app's database. Give the app a separate database for tests, such as a
    SQLite file. Messages that wait in its outbox at the start are run as well; their delays are by the test's clock.

    Args:
        app: The application. It must not be running.
        now: The time at the start; the system time if left out.

    Attributes:
        clock: The test clock.
        emitted: Messages sent so far, including messages of schedules, and of transactions that ``drain()`` has
            relayed.
        dead_letters: Dead-lettered messages, oldest first; for a queue the event is the name of the queue.
    """

    __test__ = False

    def __init__(self, app: App, *, now: datetime | None = None) -> None:
        self._app = app
        self.clock = TestClock(datetime.now(UTC) if now is None else now)
        self.dead_letters: list[DeadRecord] = []
        self._broker = MemoryBroker(self.clock, app.assembly.stream, app.assembly.processor_settings)
        self.emitted: list[EmittedMessage] = self._broker.emitted
        self._leases = MemoryLeases(app.assembly.group)
        self._runners: dict[str, HandlerRunner] = {}
        self._ticks: dict[str, int] = {}
        self._queues: MemoryQueues | None = None
        self._relay: OutboxRelay | None = None
        self._threads: ThreadPoolExecutor | None = None

    def progress(self, job_id: str) -> Progress | None:
        """Return what the handler of a job has reported last; None if it has reported nothing."""
        return self._broker.progress.get((self._app.assembly.stream, job_id))

    @takes_keywords_of(App.emit)
    async def emit(
        self, event: str, payload: Any = None, *, session: Any = None, **options: Unpack[AppEmitOptions]
    ) -> str:
        """Emit as ``App.emit`` does."""
        return await self._app.emit(event, payload, session=session, **options)

    @takes_keywords_of(App.emit_and_wait)
    async def emit_and_wait(
        self, event: str, payload: Any = None, *, returns: Any = None, **options: Unpack[AppWaitOptions]
    ) -> Any:
        """Emit as ``App.emit_and_wait`` does. Run due messages and advance the clock until the job has ended.

        Retries and other messages that become due meanwhile run at their time. If the job has not ended
        within ``timeout_s`` of the test's clock, ``JobTimeoutError`` is raised without a real wait.
        """
        return await self._app.emit_and_wait(event, payload, returns=returns, **options)

    async def deliver(self, event: str, data: Mapping[str, Any], *, message_id: str) -> None:
        """Deliver a message without checks: of another program, invalid, or a second time."""
        envelope = Envelope(event=event, id=message_id, data=dict(data))
        self._broker.put(self.clock.now_ms, self._app.assembly.stream, envelope)

    async def publish(self, queue: str, payload: Mapping[str, Any] | bytes, *, message_id: str | None = None) -> None:
        """Publish a message to a queue of RabbitMQ, as another program does.

        Args:
            queue: A queue that the app handles.
            payload: The JSON object, or the body itself.
            message_id: The AMQP property that identifies the message to the inbox.

        Raises:
            ConfigurationError: The app has no such queue.
        """
        if self._queues is None or queue not in self._app.registry.queues:
            known = ", ".join(sorted(self._app.registry.queues)) or "none"
            raise ConfigurationError(f"the app has no queue {queue!r}; its queues: {known}")
        self._queues.publish(queue, payload, message_id)

    async def deliver_fields(self, fields: Mapping[str, str | bytes]) -> None:
        """Deliver an entry as another program writes it, with plain fields: the app's ``decode`` reads it.

        An entry that it cannot read is dead-lettered.

        Raises:
            ConfigurationError: The app has no ``decode``.
        """
        assembly = self._app.assembly
        found = read_fields(fields, assembly, self.clock)
        if isinstance(found, DeadRecord):
            self.dead_letters.append(found)
        else:
            self._broker.put(self.clock.now_ms, assembly.stream, found)

    async def drain(self) -> int:
        """Run all messages and schedules that are due by the clock, in order, and return the number of handler runs.

        Raises:
            InfrastructureError: A server that a handler needs is unavailable. The message stays due.
            FatalSyncerError: The handler of a queue broke its contract.
        """
        ran = 0
        await self._relay_outbox()
        while (handlers := await self._step(self.clock.until_ms)) is not None:
            ran += handlers
        self.clock.move_to(self.clock.until_ms)
        return ran

    async def __aenter__(self) -> Self:
        assembly = self._app.assembly
        self._app.registry.events.require_complete()
        settings = assembly.processor_settings
        environment = assembly.environment(asyncio.get_running_loop())
        # Handlers run one at a time; a second thread is needed if a plain function waits for the result of another.
        threads = self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="conquiet-test-handler")
        self._broker.wait, self._broker.loop = self._wait, asyncio.get_running_loop()
        for event, function in assembly.functions(environment).items():
            declared = dict(self._app.registry.handlers[event].options)
            if declared["retry"] is None:
                declared["retry"] = settings.retry
            batch = batch_settings(declared.pop("batch", None), declared.pop("within_s", None))
            handler = HandlerSettings(event=event, function=function, batch=batch, **declared)
            self._runners[event] = runner_class(handler, ())(
                handler,
                (),
                emitter=self._broker,
                threads=lambda: threads,
                max_attempts_limit=settings.max_attempts_limit,
            )
        if queues := self._app.registry.queues:
            from conquiet.app.memory_queues import MemoryQueues

            self._queues = MemoryQueues(
                queues, assembly.syncers(environment), threads, self.dead_letters, lambda: self.clock.now_ms
            )
        self._ticks = dict.fromkeys(self._app.registry.schedules, self.clock.now_ms)
        assembly.bus, assembly.clock = self._broker, self.clock
        if assembly.has_database:
            from conquiet.app.memory_outbox import ClockedOutbox, MemoryTarget, make_due_now

            await asyncio.to_thread(self._app.create_tables)
            engine, table = assembly.database.sync_engine(), assembly.table_names["outbox"]
            self._broker.delays_s |= await asyncio.to_thread(make_due_now, engine, table, assembly.streams)
            assembly.outbox = ClockedOutbox(table, self._broker)
            self._relay = assembly.relay(
                {stream: MemoryTarget(self._broker, self.clock, stream) for stream in assembly.streams}
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        assembly = self._app.assembly
        if self._relay is not None:
            self._relay.close()
        if self._threads is not None:
            self._threads.shutdown()
        assembly.bus = assembly.outbox = None
        assembly.clock = SYSTEM_CLOCK
        await self._app.close()

    # ------------------------------------------------------------ inside
    async def _step(self, until_ms: int) -> int | None:
        """Run the next due message and return the number of handler runs; None if nothing is due by ``until_ms``."""
        if self._broker.outbox_used:
            await self._relay_outbox()
        if self._queues is not None and self._queues.has_messages:
            return await self._queues.run_next()
        due_ms = self._next_due_ms()
        if due_ms is None or due_ms > until_ms:
            return None
        self.clock.move_to(due_ms)
        self._fire_schedules()
        waiting_ms = self._broker.next_due_ms()
        if waiting_ms is not None and waiting_ms <= self.clock.now_ms:
            return await self._run_next()
        return 0

    async def _wait(self, stream: str, job_id: str, timeout_s: float) -> Any:
        """Run due messages until a job has ended, and return its result."""
        asked = ResultQuestions(stream, job_id)
        ends_ms = self.clock.now_ms + round(timeout_s * _MS)
        try:
            while (ended := self._broker.results.get((stream, job_id))) is None:
                if await self._step(ends_ms) is None:
                    self.clock.move_to(ends_ms)
                    raise asked.too_late(timeout_s)
        finally:
            self.clock.pass_to(self.clock.now_ms)
        return asked.value(*ended)

    async def _relay_outbox(self) -> None:
        self._broker.outbox_used = False
        if self._relay is not None:
            await asyncio.to_thread(self._relay.drain)

    def _next_due_ms(self) -> int | None:
        schedules = self._app.registry.schedules.values()
        times = [self._planned(entry, self._ticks[entry.name]).wake_at for entry in schedules]
        return min((due for due in (self._broker.next_due_ms(), *times) if due is not None), default=None)

    def _fire_schedules(self) -> None:
        for entry in self._app.registry.schedules.values():
            plan = self._planned(entry, self.clock.now_ms)
            self._ticks[entry.name] = plan.decided
            for due_ms in plan.fire:
                envelope = Envelope(event=entry.event, id=entry.fire_id(due_ms), data=dict(entry.data))
                self._broker.publish_at(self.clock.now_ms, entry.stream, envelope)

    def _planned(self, entry: "ScheduleEntry", now_ms: int) -> "FirePlan":
        from conquiet.scheduler.misfires import plan_fires  # an app without schedules needs no extra "scheduler"

        return plan_fires(entry, self._ticks[entry.name], now_ms)

    async def _run_next(self) -> int:
        """Run the message that is due first, unless another message of its key is in progress."""
        stream, envelope = self._broker.pop()
        if not self._broker.take_turn(stream, envelope):
            return 0
        try:
            # Each handler runs with its own copy of the context variables, as in an engine.
            return await asyncio.create_task(self._run(stream, envelope))
        finally:
            self._broker.end_turn(stream, envelope)

    async def _run(self, stream: str, envelope: Envelope) -> int:
        runner = self._runners.get(envelope.event) if stream == self._app.assembly.stream else None
        if runner is None:  # of another service
            return 0
        if isinstance(runner, BatchHandlerRunner):
            return await self._run_batch(stream, envelope, runner)
        delivery = self._leases.deliver(stream, f"{self.clock.now_ms}-0", envelope)
        try:
            with ending(delivery):
                value = await runner.invoke(envelope, delivery)
                reject_unawaited(value)
        except (InfrastructureError, MessageInProgressError):
            self._broker.keep_turn(stream, envelope)
            self._broker.put(self.clock.now_ms, stream, envelope)  # not the message's fault: no attempt is counted
            raise
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            await self._settle(stream, envelope, runner, error, delivery)
        else:
            self._end(stream, envelope, SUCCEEDED, value)
        return 1

    def _end(self, stream: str, envelope: Envelope, state: str, value: object) -> None:
        """Keep the result of a job, if it was emitted with ``keep_result_s``."""
        if envelope.keep_result_ms is None:
            return
        try:
            encoded = encode_value(value, max_bytes=self._app.assembly.processor_settings.max_payload_bytes)
        except CodecError:
            encoded = b"null"  # as in Redis, where a warning is logged
        self._broker.results[stream, envelope.id] = state, encoded

    async def _run_batch(self, stream: str, first: Envelope, runner: BatchHandlerRunner) -> int:
        """Run a message in a batch with other due messages of its event."""
        envelopes = [first, *self._broker.pop_due(stream, first.event, self.clock.now_ms, runner.batch.size - 1)]
        deliveries = [
            self._leases.deliver(stream, f"{self.clock.now_ms}-{number}", envelope)
            for number, envelope in enumerate(envelopes)
        ]
        members = runner.contexts(zip(envelopes, deliveries, strict=True))
        with ending(*deliveries):
            outcomes = await BatchRun(members, runner.invoke_batch).run()
        shared: Exception | None = None
        for envelope, delivery, outcome in zip(envelopes, deliveries, outcomes, strict=True):
            if isinstance(outcome, InfrastructureError | MessageInProgressError):
                self._broker.keep_turn(stream, envelope)
                self._broker.put(self.clock.now_ms, stream, envelope)  # not the message's fault: no attempt is counted
                shared = outcome
            elif outcome is not None:
                await self._settle(stream, envelope, runner, outcome, delivery)
            else:
                self._end(stream, envelope, SUCCEEDED, None)
        if shared is not None:
            raise shared
        return len(members)

    async def _settle(
        self, stream: str, envelope: Envelope, runner: "HandlerRunner", error: Exception, delivery: "MessageContext"
    ) -> None:
        """Retry, cancel or dead-letter a message after a failure, unless its handler acknowledged it."""
        if delivery.acknowledged:
            return
        if isinstance(error, JobCancelledError):
            if await runner.mark_cancelled(envelope, delivery):
                self._end(stream, envelope, CANCELLED, "")
            return
        decided = decide(
            error, attempt=envelope.attempt, policy=runner.retry, max_attempts=runner.attempts_of(envelope)
        )
        envelope.first_failed_ms = envelope.first_failed_ms or self.clock.now_ms
        if isinstance(decided, RetryLater):
            envelope.attempt += 1
            if not decided.yields_turn:
                self._broker.keep_turn(stream, envelope)
            self._broker.put(self.clock.now_ms + decided.delay_ms, stream, envelope)
            return
        failure = describe(error, store_text=self._app.assembly.processor_settings.store_error_text)
        assert failure is not None  # noqa: S101 - there is an error
        self._end(stream, envelope, DEAD, type(error).__name__)
        self.dead_letters.append(
            DeadRecord(
                reason=decided.reason,
                id=envelope.id,
                entry_id="",
                group=self._app.assembly.group,
                event=envelope.event,
                attempts=envelope.attempt,
                deliveries=1,
                error_type=failure.type,
                error=failure.text,
                traceback=failure.traceback,
                first_failed_ms=envelope.first_failed_ms,
                failed_ms=self.clock.now_ms,
                payload={"event": envelope.event, "id": envelope.id, "data": envelope.data},
            )
        )
