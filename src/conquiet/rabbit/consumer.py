"""``RabbitConsumer``: connects the steps, carries their answers out, and ends in good order. SPEC(004).

Nothing is decided here. ``pipeline`` prepares a message, the syncer handles it, ``settle`` decides, ``session`` sends
the decision, ``supervisor`` brings lost links back.

    broker ──delivery──▶ workers: prepare, syncer ──verdict──▶ decide ──settlement──▶ session ──▶ broker
                                                                  │
                                                                  └─ STOP: intake ends, the message stays unsettled
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, Unpack

from conquiet.errors import ConfigurationError, FatalSyncerError, RabbitError
from conquiet.kernel.background import until_ready
from conquiet.kernel.functions import makes_coroutine, require_arguments
from conquiet.kernel.lifecycle import Lifecycle, Status
from conquiet.rabbit.address import Address, as_urls, require_name
from conquiet.rabbit.config import RabbitConfig, RabbitOptions
from conquiet.rabbit.connection import Link
from conquiet.rabbit.counters import Counters, Fate, Tally
from conquiet.rabbit.counting import fitting_policy
from conquiet.rabbit.decrypt import Decryptor, KeyFault
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.events import ConnectionEvent, EventKind, Listeners
from conquiet.rabbit.loop_watch import LoopWatch
from conquiet.rabbit.pipeline import Pipeline
from conquiet.rabbit.session import Session
from conquiet.rabbit.settle import Settlement, Verdict, decide
from conquiet.rabbit.supervisor import Supervisor, unless_stopped
from conquiet.rabbit.syncer import DONE, ContractBroken, Syncer
from conquiet.rabbit.telling import tell_unprocessed
from conquiet.rabbit.topology import check_dead_letters
from conquiet.rabbit.workers import TaskWorkers, ThreadWorkers, Workers

logger = logging.getLogger(__name__)

PACKAGE = "conquiet"


class RabbitConsumer:
    """Takes messages from one queue to one syncer, and tells the broker what became of them.

    ``await consumer.run()`` works until :meth:`stop` is called or something fatal happens. ``async with`` runs it in
    the background. A consumer lives once.

    Args:
        url: ``amqp://`` or ``amqps://`` URL, or the URLs of a cluster's nodes.
        queue: Name of a queue that exists.
        syncer: Gets each message and returns True or False. ``async def`` runs on the event loop and must not block
            it for long; a plain function runs in a thread of its own.
        options: See :class:`~conquiet.rabbit.config.RabbitConfig`.

    Raises:
        ConfigurationError: A setting is wrong. Nothing was sent anywhere.
    """

    def __init__(self, url: str | Sequence[str], queue: str, syncer: Syncer, **options: Unpack[RabbitOptions]) -> None:
        if not callable(syncer):
            raise ConfigurationError("syncer must be a function that takes a message and returns True or False")
        require_arguments("syncer", syncer, "message")
        self._config = config = RabbitConfig(**options)
        self._queue = require_name("queue", queue)
        self._syncer = syncer
        self._tag = require_name("consumer tag (host name and tag)", f"{socket.gethostname()}.{config.tag or PACKAGE}")
        self._address = Address(
            as_urls(url),
            ssl_context=config.ssl_context,
            heartbeat_s=config.heartbeat_s,
            timeout_s=config.connect_timeout_s,
            name=self._tag,
        )
        self._pipeline = Pipeline(
            config.schemas,
            config.max_retries,
            None if config.key_store is None else Decryptor(config.key_store),
            config.max_body_bytes,
        )
        self._policy = config.policy
        self._tally = Tally(self._queue)
        self._listeners = Listeners()
        self._watch = LoopWatch(self._on_stall)
        self._life = Lifecycle("RabbitConsumer")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_event: asyncio.Event | None = None
        self._failure: RabbitError | None = None
        self._session: Session | None = None
        self._workers: Workers | None = None
        self._unstarted: list[Delivery] = []
        self._ready = asyncio.Event()
        self._ended = asyncio.Event()
        self._task: asyncio.Task[Counters] | None = None

    # -------------------------------------------------------------- what a user sees
    def set_concurrency(self, concurrency: int) -> None:
        """Change how many messages are handled at once, and with it an unset prefetch; before the start only."""
        self._life.require_new("concurrency")
        self._config = replace(self._config, concurrency=concurrency)

    @property
    def count(self) -> Counters:
        """The numbers so far; SPEC(004 §8)."""
        return self._tally.count

    @property
    def consumer_tag(self) -> str:
        """``<hostname>.<tag or package name>``."""
        return self._tag

    @property
    def status(self) -> Status:
        """Where it stands."""
        return self._life.status

    def listen(self, callback: Callable[[ConnectionEvent], None]) -> None:
        """Call ``callback`` whenever the connection is made, lost, blocked or unblocked. It must not block."""
        if not callable(callback):
            raise ConfigurationError("a listener is a function that takes a ConnectionEvent")
        self._listeners.add(callback)

    async def run(self) -> Counters:
        """Work until stopped. Returns the final counters.

        Raises:
            QueueMissingError: The queue is not there.
            RabbitConnectionError: No connection, or it was lost too often.
            FatalSyncerError: The syncer broke its contract; its message is back in the queue, or dead-lettered.
        """
        self._life.start()
        self._loop = asyncio.get_running_loop()
        self._stop_event = asyncio.Event()
        if self._life.is_stopping:  # a signal, or another thread, that came when there was no loop yet to wake
            self._stop_event.set()
        self._workers = self._make_workers()
        try:
            await self._work(self._stop_event)
        finally:
            self._life.finish()
            self._ready.set()
            self._ended.set()
        if self._failure is not None:
            raise self._failure
        return self.count

    def stop(self) -> None:
        """Ask for a graceful end. May be called from a signal handler, from any thread, twice, or before the start."""
        self._life.stop()
        if self._workers is not None:
            self._workers.halt()  # at once: the loop hears of it later, and a thread may be about to begin the next one
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing left to stop
                loop.call_soon_threadsafe(self._on_stop)

    async def close(self) -> None:
        """Stop, and wait for the end. Inside the syncer it only asks: the end waits for the syncer itself."""
        self.stop()
        if self._workers is not None and not self._workers.owns_current_task():  # else it never ran, or waits for us
            await self._ended.wait()

    async def ready(self) -> None:
        """Wait until the broker sends messages, or until it is over."""
        if not (self._life.is_stopping and self._workers is None):  # stopped before the start: over
            await self._ready.wait()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run())
        await until_ready(self._task, self._ready)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        self.stop()
        if task is not None:
            await task

    def fail(self, error: RabbitError) -> None:
        """End like after a fatal error, with ``error``. For whoever owns the process and saw something uncaught."""
        if self._failure is None:
            self._failure = error
        self.stop()

    def __repr__(self) -> str:
        return f"RabbitConsumer({self._address.shown}, {self._queue!r}, {self._life.status.value})"

    # -------------------------------------------------------------- one life, step by step
    async def _work(self, stop: asyncio.Event) -> None:
        assert self._workers is not None  # noqa: S101 - run() made them
        self._workers.start()
        supervisor = Supervisor(
            self._connect,
            backoff=self._config.reconnect,
            max_failures=self._config.max_reconnects,
            stop=stop,
            nodes=len(self._address.urls),
        )
        try:
            await unless_stopped(stop, check_dead_letters(self._config, self._address.vhost, self._queue))
            session = await supervisor.first()
            self._ready.set()
            while session is not None and not await self._stopped_before_loss(session, stop):
                await self._leave(session)
                session = await supervisor.next(made_progress=session.made_progress)
                self._tally.count.reconnects += session is not None
        except RabbitError as error:
            # A fatal error that came first is the better story.
            self._failure = self._failure or error
            facts = {"queue": self._queue, "error": type(error).__name__, "reason": error.reason}
            logger.error("consumer failed", extra=facts)  # noqa: TRY400 - its cause may quote what the broker said
        finally:
            try:
                await self._shut_down()
            except BaseException:  # cancelled once more: nothing may stay behind that holds messages
                self._tally.add(Fate.ABANDONED, self._workers.abandon())
                if self._session is not None:
                    self._session.link.abandon()
                raise

    async def _connect(self, attempt: int) -> Session:
        """Build everything anew: connection, channel, prefetch, consumer. Nothing of an earlier link is kept."""
        link = await Link.open(self._address, attempt=attempt)
        link.on_blocked = self._on_blocked
        try:
            depth = await link.depth(self._queue)
            if self.count.queued is None:
                self._tally.started(depth)
                logger.info("messages in the queue", extra={"queue": self._queue, "queued": depth})
            self._policy = await fitting_policy(self._config.policy, link, self._queue)
            self._watch.start(link.heartbeat_s)
            self._session = session = Session(link, self._tally, self._config.window)
            await link.consume(
                self._queue,
                tag=self._tag,
                prefetch=self._config.window,
                on_arrivals=lambda arrivals: self._on_deliveries(session.received(arrivals)),
            )
        except BaseException as error:
            # Messages may be here before the broker's answer is: when we are cancelled then, the way out is the usual
            # one (_shut_down), which lets handlers finish and sends what they settled.
            if self._session is None or not isinstance(error, asyncio.CancelledError):
                self._session = None
                await link.give_up()
            raise
        self._announce(EventKind.CONNECTED, attempt)
        return session

    async def _stopped_before_loss(self, session: Session, stop: asyncio.Event) -> bool:
        """Wait for the first of the two; True when it is a stop."""
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((stopping, session.link.lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        return self._life.is_stopping

    async def _leave(self, session: Session) -> None:
        """A link was lost: say so, and close what is left of it."""
        loss = session.link.lost.result()
        self._announce(EventKind.LOST, reason=f"{loss.kind.value}: {loss.reason}")
        logger.warning(
            "connection lost",
            extra={"queue": self._queue, "lost": loss.kind.value, "reason": loss.reason, "code": loss.code},
        )
        self._session = None
        await session.link.give_up()

    async def _shut_down(self) -> None:
        """The one way out: intake, handlers, channel, connection, counters. SPEC(004 §6, §7)."""
        assert self._workers is not None  # noqa: S101 - run() made them
        session, workers = self._session, self._workers
        self._watch.stop()
        self._life.stop()  # also when run() was cancelled or failed: from here on nothing new starts
        workers.halt()
        self._unstarted += workers.take_unstarted()
        if session is not None:
            with contextlib.suppress(RabbitError):  # lost meanwhile: there is no intake to end
                await session.link.cancel()
        self._hand_back(workers)
        await self._grace(workers)
        self._hand_back(workers)  # what a thread had taken already and did not begin
        if session is not None:
            session.flush()
            await session.link.close_channel()
            logger.info("consumer closed", extra={"queue": self._queue, "consumer_tag": self._tag})
            await session.link.close()
            logger.info("connection closed", extra={"queue": self._queue})
        logger.info("final counters", extra={"queue": self._queue, "counters": self.count.as_dict()})

    def _hand_back(self, workers: Workers) -> None:
        unstarted, self._unstarted = [*self._unstarted, *workers.take_unstarted()], []
        for delivery in unstarted:
            delivery.session.hand_back(delivery)

    async def _grace(self, workers: Workers) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.grace_s):
                await workers.drained()
        abandoned = await workers.close()
        if abandoned:
            self._tally.add(Fate.ABANDONED, abandoned)
            logger.warning(
                "handlers abandoned after the grace period; their messages go back to the queue",
                extra={"queue": self._queue, "abandoned": abandoned, "grace_s": self._config.grace_s},
            )

    # -------------------------------------------------------------- what happens in between
    def _on_deliveries(self, deliveries: list[Delivery]) -> None:
        if self._life.is_stopping or self._workers is None:
            # Kept until the broker has stopped sending: handed back at once they would come straight back to us.
            self._unstarted += deliveries
        else:
            self._workers.submit(deliveries)

    def _on_finished(self, delivery: Delivery, verdict: Verdict) -> None:
        try:
            self._settle(delivery, verdict)
        except Exception as error:
            # A mistake of ours. The delivery stays unsettled: better delivered twice than lost.
            logger.exception("a delivery could not be settled", extra={"queue": self._queue})
            failure = RabbitError("conquiet could not settle a delivery; please report this", queue=self._queue)
            failure.__cause__ = error
            self.fail(failure)

    def _settle(self, delivery: Delivery, verdict: Verdict) -> None:
        # The facts are in headers, which are not decoded for nothing; decide() says the same of a success.
        settlement = Settlement.ACK if verdict is DONE else decide(verdict, delivery.facts, self._policy)
        if settlement is not Settlement.ACK:
            tell_unprocessed(self._queue, delivery, verdict, settlement)
        parked = settlement is Settlement.DEAD_LETTER_AND_STOP and delivery.session.is_open
        delivery.session.settle(delivery, settlement)
        if settlement is Settlement.STOP or settlement is Settlement.DEAD_LETTER_AND_STOP:
            self._break_off(verdict, "was dead-lettered" if parked else "is back in the queue")

    def _break_off(self, verdict: Verdict, fate: str) -> None:
        """Fatal: nothing new starts from here on, not even what is buffered."""
        # Where two break, an outage is likelier than two poisoned messages: a process parks one at most.
        self._policy = replace(self._policy, poison_guard=False)
        if self._failure is None:
            reason = getattr(verdict, "reason", type(verdict).__name__)
            if isinstance(verdict, KeyFault):
                reason = f"{reason} (public key {verdict.public})"
            self._failure = FatalSyncerError(
                f"{reason}; the consumer of queue {self._queue} has stopped and the message {fate}",
                queue=self._queue,
                reason=reason,
            )
            self._failure.__cause__ = verdict.error if isinstance(verdict, ContractBroken) else None
        self._life.stop()
        self._on_stop()

    def _on_stop(self) -> None:
        """In the loop's thread: take back what has not started, wake whoever waits."""
        if self._workers is not None:
            self._unstarted += self._workers.take_unstarted()
        if self._stop_event is not None:
            self._stop_event.set()

    def _on_blocked(self, blocked: bool) -> None:  # noqa: FBT001 - as the link calls it
        logger.warning("connection blocked by the broker" if blocked else "connection unblocked by the broker")
        self._announce(EventKind.BLOCKED if blocked else EventKind.UNBLOCKED)

    def _on_stall(self, stalled_s: float) -> None:
        logger.warning(
            "the event loop stood still for longer than a heartbeat, and the broker may have given the connection up: "
            "something blocks it, most likely the syncer; declare it as a plain function, which runs in a thread",
            extra={"queue": self._queue, "stalled_s": round(stalled_s, 1), "syncer": _name(self._syncer)},
        )

    def _announce(self, kind: EventKind, attempt: int = 0, reason: str | None = None) -> None:
        self._tally.connection(kind.value)
        self._listeners.tell(ConnectionEvent(kind, self._queue, attempt, reason))

    def _make_workers(self) -> Workers:
        kind: Any = TaskWorkers if makes_coroutine(self._syncer) else ThreadWorkers
        workers: Workers = kind(self._syncer, self._pipeline, self._config.concurrency, self._on_finished)
        return workers


def _name(syncer: object) -> str:
    return str(getattr(syncer, "__qualname__", type(syncer).__qualname__))
