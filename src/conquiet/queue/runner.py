"""Run a handler over messages: one transaction, commit, acknowledge. SPEC(000 §1.1, §11).

    own pending (recover) ─┐
    new ───────────────────┼─▶ open session ─▶ inbox ─▶ handler ─▶ COMMIT ─▶ acknowledge
    stale (run_claim_stale)┘

A failure is raised, and the message stays pending. With an ``Outage``, an ``InfrastructureError`` keeps the message and
is followed by another attempt.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from conquiet.core.deduplicator import Deduplicator, require_deduplicator
from conquiet.core.functions import reject_awaitable, require_arguments, require_plain_function
from conquiet.core.log import FactLogger
from conquiet.errors import InfrastructureError, MalformedMessageError, QueueError
from conquiet.queue.models import QueueMessage
from conquiet.queue.outage import Outage
from conquiet.queue.retention import GrowthWatch, warn_of_growth
from conquiet.redis_transport.errors import ResponseError

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from conquiet.db.session import DbSession
    from conquiet.queue.consumer import QueueConsumer

logger = FactLogger(__name__)

_GROWTH_EVERY = 10_000

QueueHandler = Callable[[QueueMessage, "DbSession"], object]
"""A plain function. Its return value is ignored."""

OnMalformed = Callable[[MalformedMessageError], None]


class ConsumerRunner:
    """The arguments of a run, checked before the first read: a mistake must not cost a message.

    Attributes:
        handled: Messages handled so far.

    Raises:
        ConfigurationError: The handler, the engine or the inbox cannot work. Nothing was read.
    """

    _takes = "msg"
    _checks_by = "once"

    def __init__(
        self,
        consumer: "QueueConsumer",
        handler: Callable[..., object],
        engine: "Engine",
        *,
        on_malformed: OnMalformed | None = None,
        inbox: object = None,
    ) -> None:
        from conquiet.db.session import DbSession

        require_plain_function("handler", handler)
        require_arguments("handler", handler, self._takes, "session")
        if inbox is not None:
            require_deduplicator(inbox, self._checks_by, self._takes)
        if on_malformed is not None:
            require_plain_function("on_malformed", on_malformed)
            require_arguments("on_malformed", on_malformed, "error")
        DbSession(engine)  # opens nothing, but refuses an unusable engine
        self._open_session = functools.partial(DbSession, engine)
        self._consumer = consumer
        self._handler = handler
        self._on_malformed = on_malformed
        self._inbox: Any = inbox
        self.handled = 0


class MessageRunner(ConsumerRunner):
    """Runs one handler over the messages of one consumer, one at a time."""

    _inbox: Deduplicator | None

    def run(self, outage: Outage | None = None) -> None:
        """Handle new messages until stopped; with an ``outage``, own pending ones first. See ``QueueConsumer.run``."""
        consumer, growth = self._consumer, GrowthWatch()
        if outage is None:
            work = self._handle
            self._warn_of_own_pending()
        else:
            work = functools.partial(self._handle_through, outage)
            self._recover(work)
        while not consumer.is_stopping:
            try:
                msg = consumer.next(block_ms=consumer.config.block_ms)
            except MalformedMessageError as error:
                self._report_malformed(error)
                continue
            if msg is not None:
                work(msg)
                self.handled += 1
                if self.handled % _GROWTH_EVERY == 0:
                    self._watch_growth(growth)

    def run_claim_stale(self, min_idle_ms: int | None, interval_s: float) -> None:
        """Handle stale messages until stopped. See ``QueueConsumer.run_claim_stale``."""
        consumer = self._consumer
        while not consumer.is_stopping:
            try:
                claimed = consumer.claim_stale(min_idle_ms, 1)
            except MalformedMessageError as error:
                self._report_malformed(error)
                continue
            if claimed:
                self._handle(claimed[0])
                self.handled += 1
            elif not claimed.deleted:  # a deleted entry was just dropped: more may follow
                consumer.sleep(interval_s)

    def _recover(self, work: Callable[[QueueMessage], None]) -> None:
        """Handle the messages pending under this consumer's name, one by one, in the order of their ids."""
        after = "0-0"
        while not self._consumer.is_stopping:
            try:
                batch = self._consumer.recover_own(1, after=after)
            except MalformedMessageError as error:
                # run() raised its error when it was first read. Raised again at each start, it would block every
                # later message. It is logged each time.
                if self._on_malformed is not None:
                    self._on_malformed(error)
                after = error.message_ids[-1]
                continue
            if batch.last_id is None:
                return
            for msg in batch:
                work(msg)
                self.handled += 1
            after = batch.last_id

    def _warn_of_own_pending(self) -> None:
        """Log the number of messages pending under this consumer's name, which run() does not read. One XPENDING."""
        config = self._consumer.config
        count = _unless_refused(self._consumer.queue.count_own)
        if count:
            logger.warning(
                "%(count)s messages are pending under this consumer's name, and run() does not read them; "
                "handle them with run(recover=True), or fetch them with recover_own()",
                stream=config.stream_key,
                group=config.consumer_group,
                consumer=config.consumer_name,
                count=count,
            )

    def _watch_growth(self, growth: GrowthWatch) -> None:
        """Log once if the stream only grows: this consumer removes nothing, and no other program does."""
        done = _unless_refused(self._consumer.queue.count_done)
        if done is not None and growth.observe(done):
            warn_of_growth(self._consumer.config.stream_key, done)

    def _handle_through(self, outage: Outage, msg: QueueMessage) -> None:
        """Handle ``msg``, and again after a pause while a server that the handler needs is unavailable.

        The message stays pending for this consumer. A stop ends the wait, and the next ``run(recover=True)`` begins
        with it.
        """
        consumer = self._consumer
        while True:
            try:
                self._handle(msg)
            except InfrastructureError as error:
                consumer.sleep(outage.failed(error, msg.id))
            else:
                outage.over()
                return
            # Not a new delivery: an outage is not charged to the message. If another consumer claimed it during a
            # pause that took longer than planned, it belongs to that consumer.
            if consumer.is_stopping or not consumer.extend(msg):
                return

    def _handle(self, msg: QueueMessage) -> None:
        # Commit first, ack second. A crash in between delivers the message again, which an inbox or an idempotent
        # handler survives; the other order would lose it. After an error the message stays pending.
        with self._open_session() as session:
            # A coroutine is refused before the commit: if it were acknowledged, the message would be lost.
            if self._inbox is None:
                reject_awaitable("the handler", self._handler(msg, session))
            else:
                with self._inbox.once(session, msg) as first_time:
                    if first_time:
                        reject_awaitable("the handler", self._handler(msg, session))
        self._consumer.ack(msg)

    def _report_malformed(self, error: MalformedMessageError) -> None:
        if self._on_malformed is None:
            raise error
        self._on_malformed(error)


def _unless_refused(count: Callable[[], int]) -> int | None:
    """Return a count of the server; None if it refuses to count, e.g. NOPERM for XPENDING: reads may work."""
    try:
        return count()
    except QueueError as error:
        if isinstance(error.__cause__, ResponseError):
            return None
        raise
