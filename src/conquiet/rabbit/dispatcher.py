"""Pass deliveries to the workers, and carry out the disposition of each. Does not use connections.

    deliveries ──▶ outage ──▶ workers ──verdict──▶ decide ──▶ acknowledge, requeue, dead-letter: by the session
                     ▲           │                   ├──────▶ move to <queue>.dead: by the mover
                     └───────────┘                   └──────▶ STOP: nothing new starts, the message stays unsettled
                       no result

A message without a result runs again, and is counted as postponed.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from conquiet.core.functions import is_coroutine_function
from conquiet.core.log import FactLogger
from conquiet.errors import FatalSyncerError, RabbitError
from conquiet.rabbit.address import Address
from conquiet.rabbit.batch_workers import BatchWorkers
from conquiet.rabbit.counters import DeliveryOutcome, DeliveryStats
from conquiet.rabbit.dead_letter_headers import dead_queue
from conquiet.rabbit.dead_letter_mover import DeadLetterMover
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.outage import SyncerPause
from conquiet.rabbit.pipeline import Pipeline
from conquiet.rabbit.proca.decrypt import KeyFault
from conquiet.rabbit.settings import RabbitSettings
from conquiet.rabbit.settle import Disposition, SettlePolicy, Verdict, attempt_of, decide
from conquiet.rabbit.settlement_log import report_unprocessed
from conquiet.rabbit.syncer import DONE, ContractBroken, Interruption, Syncer
from conquiet.rabbit.workers import RunResult, SyncerWorkers, TaskWorkers, ThreadWorkers

logger = FactLogger(__name__)

_STOPPING: Final = frozenset({Disposition.STOP, Disposition.DEAD_LETTER_AND_STOP})


class Dispatcher:
    """Handles the deliveries of one consumer, over all its links.

    Args:
        syncer: Handles the messages.
        pipeline: Prepares them.
        settings: The consumer's settings.
        address: The broker, for moved messages.
        stats: Counts deliveries, and has the queue's name.
        fail: Ends the consumer with an error. Called in the loop's thread.

    Attributes:
        policy: The settle policy for deliveries of the current link.
        moves: True if the consumer moves failed messages of the current link to ``<queue>.dead``.
    """

    def __init__(
        self,
        syncer: Syncer,
        pipeline: Pipeline,
        settings: RabbitSettings,
        address: Address,
        stats: DeliveryStats,
        fail: Callable[[RabbitError], None],
    ) -> None:
        self.policy = settings.policy
        self.moves = False
        self._notify_finished: Callable[[Delivery], None] = lambda _delivery: None
        self._settings = settings
        self._stats = stats
        self._queue = stats.queue
        self._fail = fail
        self._halted = False
        self._grace: asyncio.Timeout | None = None
        self._grace_s = settings.grace_s
        self._unstarted: list[Delivery] = []
        self._workers: SyncerWorkers
        if settings.batches is None:
            kind: type[SyncerWorkers] = TaskWorkers if is_coroutine_function(syncer) else ThreadWorkers
            self._workers = kind(syncer, pipeline, settings.concurrency, self._on_finished)
        else:
            self._workers = BatchWorkers(syncer, pipeline, settings.concurrency, self._on_finished, settings.batches)
        self._outage = SyncerPause(self._queue, self._workers.submit, self._workers.take_unstarted, settings.outage)
        self._mover = DeadLetterMover(address, self._queue, fail, settings.reconnect)

    @property
    def is_paused(self) -> bool:
        """True while consumption is paused because a server that the syncer needs is unavailable."""
        return self._outage.is_paused

    def start(self) -> None:
        """Start the workers. Called in the event loop."""
        self._workers.start()

    def submit(self, deliveries: list[Delivery]) -> None:
        """Accept deliveries from the broker."""
        if self._halted:
            # Kept until the consumer is cancelled: the broker would deliver them here again.
            self._unstarted += deliveries
        else:
            self._outage.submit(deliveries)

    def link_opened(self, policy: SettlePolicy, *, moves: bool, on_finished: Callable[[Delivery], None]) -> None:
        """Prepare for the deliveries of a new link; see the attributes. ``on_finished`` receives redelivered ones."""
        self.policy = policy
        self.moves = moves
        self._notify_finished = on_finished

    def link_lost(self) -> None:
        """Handle the loss of the link of all deliveries so far."""
        self._outage.link_lost()

    def halt(self) -> None:
        """Start no message from now on. Only assigns, so any thread and a signal handler may call it."""
        self._halted = True
        self._workers.halt()

    def collect_unstarted(self) -> None:
        """Take unstarted deliveries back from the workers, to return them to the queue later."""
        self._unstarted += self._outage.take_unstarted()

    def return_unstarted(self) -> None:
        """Return unstarted deliveries to the queue."""
        self.collect_unstarted()
        unstarted, self._unstarted = self._unstarted, []
        for delivery in unstarted:
            delivery.session.release(delivery)

    def owns_current_task(self) -> bool:
        """Return whether the syncer is calling: it cannot wait for its own end."""
        return self._workers.owns_current_task()

    def end_grace_period(self) -> None:
        """End the wait of :meth:`drain`."""
        self._grace_s = 0.0
        if self._grace is not None:
            self._grace.reschedule(0.0)
        self._mover.drop_connection()

    async def drain(self) -> None:
        """Wait for running handlers and moves up to the grace period, then end them."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s) as self._grace:
                await self._workers.drained()
                await self._mover.drained()
        self._grace = None
        abandoned = await self._workers.close()
        await self._mover.close()
        if abandoned:
            self._stats.add(DeliveryOutcome.ABANDONED, abandoned)
            logger.warning(
                "handlers abandoned after the grace period; their messages return to the queue",
                queue=self._queue,
                abandoned=abandoned,
                grace_s=self._settings.grace_s,
            )

    # -------------------------------------------------------------- dispositions
    def _on_finished(self, delivery: Delivery, report: RunResult) -> None:
        try:
            if report is DONE:
                # Shortcut: decide() returns the same, but needs decoded headers.
                delivery.session.acknowledge(delivery)
                self._outage.finished(delivery)
            elif isinstance(report, Interruption):
                self._stats.add(DeliveryOutcome.POSTPONED)
                if self._halted:
                    self._unstarted.append(delivery)
                else:
                    self._outage.interrupted(delivery, report)
            else:
                self._settle(delivery, report)
                self._outage.finished(delivery)
            if delivery.redelivered:
                self._notify_finished(delivery)
        except Exception as error:  # noqa: BLE001
            # A bug of this library. The delivery stays unsettled: a duplicate is preferred to a loss.
            logger.failure(logging.ERROR, "a delivery could not be settled", error, queue=self._queue)
            failure = RabbitError("conquiet could not settle a delivery; please report this", queue=self._queue)
            failure.__cause__ = error
            self._fail(failure)

    def _settle(self, delivery: Delivery, verdict: Verdict) -> None:
        facts = delivery.facts
        disposition = decide(verdict, facts, self.policy)
        if self.moves and disposition is Disposition.DEAD_LETTER:
            disposition = Disposition.MOVE
        tracebacks = self._settings.log_tracebacks
        attempt = attempt_of(facts, self.policy)
        report_unprocessed(delivery, verdict, disposition, attempt, tracebacks=tracebacks)
        parks = disposition is Disposition.DEAD_LETTER_AND_STOP and delivery.session.is_open
        place = "is back in the queue"
        if parks and self.moves:
            self._mover.move(delivery, verdict)
            self._stats.add(DeliveryOutcome.FATAL)
            place = f"goes to {dead_queue(self._queue)}"
        elif disposition is Disposition.MOVE:
            self._mover.move(delivery, verdict)
        else:
            delivery.session.settle(delivery, disposition)
            place = "was dead-lettered" if parks else place
        if disposition in _STOPPING:
            self._end_consumer(verdict, place)

    def _end_consumer(self, verdict: Verdict, place: str) -> None:
        """End the consumer with the verdict as its error."""
        # If two messages break the contract, an outage is likelier than two poison messages. So a process dead-letters
        # at most one of them.
        self.policy = replace(self.policy, poison_guard=False)
        reason = verdict.reason
        if isinstance(verdict, KeyFault):
            reason = f"{reason} (public key {verdict.public})"
        failure = FatalSyncerError(
            f"{reason}; the consumer of queue {self._queue} has stopped and the message {place}",
            queue=self._queue,
            reason=reason,
        )
        failure.__cause__ = verdict.error if isinstance(verdict, ContractBroken) else None
        self._fail(failure)
