"""Run a batch handler over the messages of one consumer: one transaction, one acknowledgement for all.

    read up to ``batch`` ─▶ session ─▶ inbox ─▶ handler(new ones) ─▶ extend all leases ─▶ COMMIT ─▶ one XACK

If the call fails, the batch is halved until the message that fails is alone (``core.batch_run``). The others have their
effect and are acknowledged; then the error of the first failed message is raised, and that message stays pending.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from conquiet.core.batch_run import BatchRun, Outcome
from conquiet.core.batching import BatchSettings, BatchTimes
from conquiet.core.functions import reject_awaitable
from conquiet.core.threads import run_without_loop
from conquiet.errors import LeaseLostError, MalformedMessageError
from conquiet.queue.models import QueueMessage
from conquiet.queue.runner import ConsumerRunner

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sqlalchemy import Engine

    from conquiet.queue.consumer import QueueConsumer

QueueBatchHandler = Callable[[list[QueueMessage], Any], object]
"""A plain function, called with messages and a ``DbSession``. Its return value is ignored."""


class BatchDeduplicator(Protocol):
    """Decides which messages of a batch are handled; ``conquiet.transactional.Inbox`` is the implementation."""

    def once_many(self, session: Any, msgs: Sequence[QueueMessage]) -> "AbstractContextManager[list[bool]]":
        """Yield True for each message to handle, False if its effect is committed already."""
        ...


class BatchMessageRunner(ConsumerRunner):
    """Runs one batch handler over the messages of one consumer."""

    _takes = "msgs"
    _checks_by = "once_many"
    _inbox: BatchDeduplicator | None

    def __init__(
        self,
        consumer: "QueueConsumer",
        handler: QueueBatchHandler,
        engine: "Engine",
        settings: BatchSettings,
        **options: Any,
    ) -> None:
        super().__init__(consumer, handler, engine, **options)
        self._settings = settings
        self._times = BatchTimes()
        self._malformed: MalformedMessageError | None = None

    def run(self) -> None:
        """Handle new messages until stopped. See ``QueueConsumer.run_batches``."""
        while not self._consumer.is_stopping:
            msgs = self._gather()
            if msgs:
                began = time.monotonic()
                self._handle(msgs)
                self.handled += len(msgs)
                if len(msgs) < self._settings.size:  # a full batch does not wait for others
                    self._times.record(time.monotonic() - began)
            if self._malformed is not None:  # after the good ones: reading has made all of them ours
                raise self._malformed

    def _gather(self) -> list[QueueMessage]:
        """Read up to ``size`` messages: what there is, and what comes soon enough after the first."""
        consumer, size = self._consumer, self._settings.size
        msgs = self._read(consumer.config.block_ms, size)
        deadline = time.monotonic() + self._times.gathering_s(self._settings.within_s)
        while msgs and len(msgs) < size and self._malformed is None and not consumer.is_stopping:
            left_ms = int((deadline - time.monotonic()) * 1000)
            if left_ms < 1:
                break
            msgs += self._read(left_ms, size - len(msgs))
        return msgs

    def _read(self, block_ms: int, count: int) -> list[QueueMessage]:
        try:
            found = self._consumer.next_batch(count, block_ms=block_ms)
        except MalformedMessageError as error:
            self._report(error)
            return []
        for one in found.malformed:
            self._report(one)
        return list(found)

    def _report(self, error: MalformedMessageError) -> None:
        if self._on_malformed is None:
            self._malformed = self._malformed or error
        else:
            self._on_malformed(error)

    def _handle(self, msgs: list[QueueMessage]) -> None:
        lost: dict[str, Outcome] = {}

        async def call(some: list[QueueMessage]) -> None:  # never suspends
            self._transact(some, lost)

        outcomes = run_without_loop(BatchRun(msgs, call, lost=lambda msg: lost.get(msg.id)).run())
        # Commit first, ack second: see ``MessageRunner``. Failed messages stay pending.
        done = [msg for msg, outcome in zip(msgs, outcomes, strict=True) if outcome is None]
        if done:
            self._consumer.queue.ack_many(done)
        for msg, outcome in zip(msgs, outcomes, strict=True):
            # A message that was removed because of a lost lease belongs to its new owner: it is not a failure of this
            # run.
            if outcome is not None and outcome is not lost.get(msg.id):
                raise outcome

    def _transact(self, msgs: list[QueueMessage], lost: dict[str, Outcome]) -> None:
        with self._open_session() as session:
            session.before_commit(functools.partial(self._extend, msgs, lost))
            if self._inbox is None:
                reject_awaitable("the handler", self._handler(msgs, session))
                return
            with self._inbox.once_many(session, msgs) as first_time:
                new = [msg for msg, is_first in zip(msgs, first_time, strict=True) if is_first]
                if new:
                    reject_awaitable("the handler", self._handler(new, session))

    def _extend(self, msgs: list[QueueMessage], lost: dict[str, Outcome], _session: Any) -> None:
        """Raise if another consumer has one of the messages: it is taken out, and the others run again."""
        kept = self._consumer.queue.extend_many(msgs)
        for msg in msgs:
            if msg.id not in kept:
                lost[msg.id] = LeaseLostError(
                    "the message was claimed by another consumer or acknowledged while its batch was handled; it was "
                    "taken out before COMMIT. Raise claim_idle_ms, or handle smaller batches",
                    stream=msg.stream,
                    group=msg.group,
                    message_id=msg.id,
                )
        if len(kept) < len(msgs):
            raise LeaseLostError("messages of the batch were lost before COMMIT", stream=msgs[0].stream)
