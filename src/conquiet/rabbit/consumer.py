"""Consume one queue, from the start of the consumer to its end. SPEC(004).

``dispatcher`` passes each message to the syncer and settles it; ``connection_supervisor`` reconnects.

    broker ──delivery──▶ dispatcher: prepare, syncer, decide ──disposition──▶ session ──▶ broker

See docs/decisions/0021.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from conquiet.core.background import BackgroundWorker
from conquiet.core.functions import require_arguments, require_made_for, warn_if_pool_is_smaller
from conquiet.core.lifecycle import AsyncLifecycle, Health, Status
from conquiet.core.log import FactLogger
from conquiet.core.task_cancellation import wait_shielded
from conquiet.errors import ConfigurationError, RabbitConnectionError, RabbitError
from conquiet.metrics.outages import OutageWatch
from conquiet.rabbit.address import Address, as_urls, require_name
from conquiet.rabbit.connection import Link, Loss
from conquiet.rabbit.connection_events import Callback, ConnectionEvent, ConnectionEvents, EventKind
from conquiet.rabbit.connection_supervisor import ConnectionSupervisor, unless_stopped
from conquiet.rabbit.counters import Counters, DeliveryStats
from conquiet.rabbit.dead_letter_check import find_dead_letters, report_missing_dead_letters
from conquiet.rabbit.dispatcher import Dispatcher
from conquiet.rabbit.link_session import LinkSession
from conquiet.rabbit.loop_stall_monitor import LoopStallMonitor
from conquiet.rabbit.pipeline import Pipeline
from conquiet.rabbit.queue_probe import resolve_policy, was_declared_with_dead_letters
from conquiet.rabbit.settings import RabbitSettings, method_takes_settings
from conquiet.rabbit.settle import SettlePolicy
from conquiet.rabbit.slow_start import SlowStart
from conquiet.rabbit.syncer import Syncer

logger = FactLogger(__name__)

PACKAGE = "conquiet"
_FORCED_STOP_TIMEOUT_S: Final = 0.5
"""Time for the broker to reply to the last requests of a forced stop."""


class RabbitConsumer(BackgroundWorker):
    """Passes the messages of one queue to one syncer, and settles each with the broker.

    ``await consumer.run()`` works until :meth:`stop` is called or a fatal error occurs. ``async with`` runs it in the
    background. A consumer runs once.

    Args:
        url: ``amqp://`` or ``amqps://`` URL, or the URLs of a cluster's nodes.
        queue: Name of an existing queue.
        syncer: Receives each message and returns True or False. ``async def`` runs on the event loop and must not
            block it for long; a plain function runs in a thread.
        options: See :class:`~conquiet.rabbit.settings.RabbitSettings`.

    Raises:
        ConfigurationError: A setting is wrong. Nothing was sent.
    """

    @method_takes_settings(RabbitSettings)
    def __init__(self, url: str | Sequence[str], queue: str, syncer: Syncer, **options: Any) -> None:
        if not callable(syncer):
            raise ConfigurationError("syncer must be a function that takes a message and returns True or False")
        require_arguments("syncer", syncer, "message")
        self._settings = settings = RabbitSettings(**options)
        self._queue = require_name("queue", queue)
        require_made_for(syncer, "queue", self._queue)
        warn_if_pool_is_smaller(syncer, settings.concurrency)
        self._syncer = syncer
        self._tag = require_name(
            "consumer tag (host name and tag)", f"{socket.gethostname()}.{settings.tag or PACKAGE}"
        )
        self._address = Address(
            as_urls(url),
            ssl_context=settings.ssl_context,
            heartbeat_s=settings.heartbeat_s,
            timeout_s=settings.connect_timeout_s,
            name=self._tag,
        )
        self._pipeline = Pipeline.of(settings)
        self._stats = DeliveryStats(self._queue)
        self._events = ConnectionEvents()
        self._outage = OutageWatch("RabbitMQ", f"nothing is consumed from queue {self._queue}")
        self._stall_monitor = LoopStallMonitor(self._on_stall)
        self._life = AsyncLifecycle("RabbitConsumer")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_event = asyncio.Event()
        self._failure: RabbitError | None = None
        self._keeps: bool | None = None  # True if the queue has a dead-letter exchange, None if unknown
        self._session: LinkSession | None = None
        self._dispatcher = self._new_dispatcher()
        self._slow_start: SlowStart | None = None
        self._ready = asyncio.Event()

    # -------------------------------------------------------------- public
    def set_concurrency(self, concurrency: int) -> None:
        """Set the number of concurrent messages (or batches), and with it an unset prefetch. Only before the start."""
        self._life.require_new("concurrency")
        self._settings = replace(self._settings, concurrency=concurrency)
        self._dispatcher = self._new_dispatcher()

    @property
    def count(self) -> Counters:
        """The counters so far; SPEC(004 §8)."""
        return self._stats.count

    @property
    def consumer_tag(self) -> str:
        """The consumer tag: ``<hostname>.<tag or package name>``."""
        return self._tag

    name = consumer_tag

    @property
    def status(self) -> Status:
        """The state of the consumer in its lifecycle."""
        return self._life.status

    @property
    def abandoned(self) -> int:
        """Number of handlers that did not end within the grace period."""
        return self.count.abandoned

    @property
    def is_paused(self) -> bool:
        """True while consumption is paused because a server that the syncer needs is unavailable."""
        return self._dispatcher.is_paused

    def health(self) -> Health:
        """Report whether messages are consumed now. Never raises, and sends no request to a server."""
        count = self.count
        handled = count.ack + count.nack + count.stale
        return Health(status=self._life.status, reason=self._problem(), handled=handled)

    def _problem(self) -> str:
        session = self._session
        if session is None or not session.is_open or not self._ready.is_set():
            return "not connected to RabbitMQ"
        return "paused: a server that the syncer needs is unavailable" if self.is_paused else ""

    def on(self, event: str, callback: Callback) -> None:
        """Call ``callback(event)`` when the connection is ``connected``, ``lost``, ``blocked`` or ``unblocked``.

        The callback must not block.
        """
        self._events.on(event, callback)

    def off(self, event: str, callback: Callback) -> None:
        """End a subscription of ``on``. Raises ``ConfigurationError`` if there is none."""
        self._events.off(event, callback)

    async def run(self) -> Counters:
        """Work until stopped, and return the final counters.

        A cancellation counts as a stop, and is raised once the consumer has ended. A second one forces the stop.

        Raises:
            QueueMissingError: The queue does not exist.
            RabbitConnectionError: No connection, or it was lost too often.
            FatalSyncerError: The syncer broke its contract. The message is back in the queue, or dead-lettered.
        """
        self._life.start()
        self._loop = asyncio.get_running_loop()
        if self._life.is_stopping:  # a signal or another thread called stop() before there was a loop to wake
            self._stop_event.set()
        try:
            working = asyncio.create_task(self._work(), name="conquiet-rabbit")
            await wait_shielded(working, stop=partial(self._request_stop, self._on_stop), force=self._on_forced_stop)
        finally:
            self._ready.set()
            self._life.finish()
        if self._failure is not None:
            raise self._failure
        return self.count

    def stop(self) -> None:
        """Request a graceful stop. A second call ends the grace period, and half a second later the connection.

        May be called from a signal handler, from any thread, or before the start. A syncer that is a plain function
        continues in its thread until it returns or the process ends.
        """
        self._request_stop(self._on_forced_stop if self._life.request_stop() else self._on_stop)

    async def close(self) -> None:
        """Stop, and wait until everything is released. If the syncer calls it, it only requests the stop."""
        self._request_stop(self._on_stop)
        if not self._dispatcher.owns_current_task():
            await self._life.wait_ended()

    async def ready(self) -> None:
        """Wait until the broker sends messages, or until the consumer has ended."""
        if not (self._life.is_stopping and self._loop is None):  # stopped before the start: it has ended
            await self._ready.wait()

    def _enter(self) -> tuple[Coroutine[Any, Any, Counters], asyncio.Event]:
        return self.run(), self._ready

    def fail(self, error: RabbitError) -> None:
        """Stop, and let :meth:`run` raise ``error``. For the process's main code, after an uncaught exception."""
        if self._failure is None:
            self._failure = error
        self._request_stop(self._on_stop)

    def _end_with(self, error: RabbitError) -> None:
        """Fail without waiting for the next turn of the event loop. Called in the loop's thread."""
        self.fail(error)
        self._on_stop()

    def _request_stop(self, callback: Callable[[], None]) -> None:
        self._life.stop()
        self._dispatcher.halt()  # before the loop runs the callback: a thread may be about to start a message
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is left to stop
                loop.call_soon_threadsafe(callback)

    def __repr__(self) -> str:
        return f"RabbitConsumer({self._address.shown}, {self._queue!r}, {self._life.status.value})"

    # -------------------------------------------------------------- the steps of a run
    def _new_dispatcher(self) -> Dispatcher:
        return Dispatcher(self._syncer, self._pipeline, self._settings, self._address, self._stats, self._end_with)

    async def _work(self) -> None:
        self._dispatcher.start()
        supervisor = ConnectionSupervisor(
            self._connect,
            backoff=self._settings.reconnect,
            max_failures=self._settings.max_reconnects,
            stop=self._stop_event,
            nodes=len(self._address.urls),
            on_failure=partial(self._outage.failed, address=self._address.shown),
        )
        about = {"queue": self._queue, "address": self._address.shown, "consumer_tag": self._tag}
        logger.info("worker starts: queue %(queue)s", **about)
        try:
            finding = find_dead_letters(self._settings, self._address.vhost, self._queue)
            self._keeps = await unless_stopped(self._stop_event, finding)
            session = await supervisor.first()
            self._ready.set()
            logger.info("worker ready: queue %(queue)s", **about)
            while session is not None:
                loss = await unless_stopped(self._stop_event, asyncio.shield(session.link.lost))
                if loss is None or self._life.is_stopping:
                    break
                await self._leave(session, loss)
                session = await supervisor.next(made_progress=session.made_progress)
                self._stats.count.reconnects += session is not None
        except RabbitError as error:
            # An earlier fatal error is the cause.
            self._failure = self._failure or error
            logger.failure(logging.ERROR, "consumer failed", error, queue=self._queue)
        finally:
            await self._shut_down()

    async def _connect(self, attempt: int) -> LinkSession:
        """Open a new connection, channel and consumer. Nothing of an earlier link is kept."""
        link = await Link.open(self._address, attempt=attempt)
        link.on_blocked = self._on_blocked
        try:
            depth = await link.depth(self._queue)
            if self.count.queued is None:
                self._stats.started(depth)
                logger.info("messages in the queue", queue=self._queue, queued=depth)
            policy, moves = await self._choose_dispositions(link)
            self._stall_monitor.start(link.heartbeat_s)
            window = self._settings.window
            self._session = session = LinkSession(link, self._stats, window)
            self._slow_start = slow_start = SlowStart(
                link, self._dispatcher.submit, queue=self._queue, tag=self._tag, window=window, depth=depth
            )
            self._dispatcher.link_opened(policy, moves=moves, on_finished=slow_start.finished)
            await slow_start.consume(session.received)
        except BaseException as error:
            # Messages may arrive before the broker's reply. If this task is cancelled then, _shut_down lets the
            # handlers finish and sends their dispositions.
            if self._session is None or not isinstance(error, asyncio.CancelledError):
                self._session = None
                await link.close_soon()
            raise
        self._announce(EventKind.CONNECTED, attempt)
        self._outage.succeeded()
        return session

    async def _choose_dispositions(self, link: Link) -> tuple[SettlePolicy, bool]:
        """Return the settle policy, and whether failed messages are moved: both depend on the queue."""
        policy = await resolve_policy(self._settings.policy, link, self._queue)
        keeps = self._keeps
        if keeps is None:
            keeps = await was_declared_with_dead_letters(link, self._queue)
        moves = self._settings.without_dead_letters == "move" and not keeps
        if not keeps and self._session is None and self.count.reconnects == 0:
            report_missing_dead_letters(self._queue, moves=moves, known=self._keeps is False)
        return policy, moves

    async def _leave(self, session: LinkSession, loss: Loss) -> None:
        """Report a lost link, and close its connection."""
        reason = f"{loss.kind.value}: {loss.reason}"
        self._announce(EventKind.LOST, reason=reason)
        code = "" if loss.code is None else f" (code {loss.code})"
        self._outage.failed(RabbitConnectionError(f"connection lost, {reason}{code}"), address=self._address.shown)
        self._session = None
        if self._slow_start is not None:
            await self._slow_start.end()
        self._dispatcher.link_lost()
        await session.link.close_soon()

    async def _shut_down(self) -> None:
        """End intake, handlers, channel and connection, in this order, and log the counters. SPEC(004 §6, §7)."""
        session, dispatcher = self._session, self._dispatcher
        self._stall_monitor.stop()
        logger.info("worker draining: queue %(queue)s", queue=self._queue, grace_s=self._settings.grace_s)
        self._life.stop()  # needed if run() was cancelled or failed: nothing new starts from here on
        dispatcher.halt()
        if self._slow_start is not None:
            await self._slow_start.end()
        dispatcher.collect_unstarted()
        if session is not None:
            with contextlib.suppress(RabbitError):  # the link is lost: there is no intake to end
                await session.link.cancel()
        dispatcher.return_unstarted()
        await dispatcher.drain()
        dispatcher.return_unstarted()  # deliveries that a thread had taken and not started
        if session is not None:
            session.flush()
            await session.link.close_channel()
            logger.info("consumer closed", queue=self._queue, consumer_tag=self._tag)
            await session.link.close()
            logger.info("connection closed", queue=self._queue)
        self._outage.close()
        counters = {"queue": self._queue, "counters": self.count.as_dict()}
        logger.info("worker stopped: queue %(queue)s, final counters %(counters)s", **counters)

    # -------------------------------------------------------------- callbacks, in the loop's thread
    def _on_forced_stop(self) -> None:
        """End the grace period. Half a second later, end the connections, so that a silent broker delays nothing."""
        self._on_stop()
        self._dispatcher.end_grace_period()
        asyncio.get_running_loop().call_later(_FORCED_STOP_TIMEOUT_S, self._drop_connection)

    def _drop_connection(self) -> None:
        if self._session is not None:
            self._session.link.drop()

    def _on_stop(self) -> None:
        """Take back unstarted deliveries, and wake :meth:`run`."""
        self._dispatcher.collect_unstarted()
        self._stop_event.set()

    def _on_blocked(self, blocked: bool) -> None:  # noqa: FBT001 - as the link calls it
        logger.warning("connection blocked by the broker" if blocked else "connection unblocked by the broker")
        self._announce(EventKind.BLOCKED if blocked else EventKind.UNBLOCKED)

    def _on_stall(self, stalled_s: float) -> None:
        logger.warning(
            "the event loop was blocked for longer than a heartbeat, and the broker may have closed the connection: "
            "something blocks it, most likely the syncer; declare it as a plain function, which runs in a thread",
            queue=self._queue,
            stalled_s=round(stalled_s, 1),
            syncer=_name(self._syncer),
        )

    def _announce(self, kind: EventKind, attempt: int = 0, reason: str | None = None) -> None:
        self._stats.connection(kind.value)
        self._events.emit(ConnectionEvent(kind, self._queue, attempt, reason))


def _name(syncer: object) -> str:
    return str(getattr(syncer, "__qualname__", type(syncer).__qualname__))
