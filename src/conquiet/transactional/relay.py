"""Publish committed rows of the outbox to their targets.

    scan ──▶ lock ──▶ publish ──▶ delete ──▶ COMMIT
                         │
                         └─ died here: the row is still there, and is published again with the same id

Publish first, delete second. A crash in between publishes twice, and the receiver's inbox
skips the second; the other order would lose the message. Any number of relays may run, on any hosts: each skips rows
that another relay has locked, and a key belongs to the relay that holds its oldest row.

See docs/decisions/0025.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from operator import add
from typing import Final

from sqlalchemy.engine import Engine

from conquiet.core.backoff import Backoff
from conquiet.core.closing import ClosedAfterUse
from conquiet.core.lifecycle import BlockingLifecycle, Health
from conquiet.core.log import FactLogger
from conquiet.core.validation import require_instance, require_positive, require_seconds, require_text
from conquiet.db.dialects import require_supported
from conquiet.db.engine_pool import database_address
from conquiet.db.session import DbSession
from conquiet.db.statement_abort import AbortableEngine
from conquiet.errors import DbWriteError, InfrastructureError
from conquiet.metrics.outages import OutageWatch
from conquiet.metrics.registry import (
    OUTBOX_DELIVERY_SECONDS,
    OUTBOX_LAG_SECONDS,
    OUTBOX_PARKED_TOTAL,
    OUTBOX_PUBLISHED_TOTAL,
    OUTBOX_REFUSED_TOTAL,
)
from conquiet.metrics.safety import count, never_raises, set_gauge
from conquiet.transactional.notifications import listener_for
from conquiet.transactional.outbox import Outbox
from conquiet.transactional.outbox_store import OutboxPosition, OutboxStore, own_engine
from conquiet.transactional.relay_decisions import (
    OutboxMessage,
    Park,
    PublishOutcome,
    RetryRow,
    after_refusal,
    in_order,
    plan,
)
from conquiet.transactional.schema import if_missing
from conquiet.transactional.sql_dialect import dialect_named
from conquiet.transactional.target_publisher import TargetPublisher, require_targets
from conquiet.transactional.targets import Target
from conquiet.transactional.unserved_targets import UnservedTargets

logger = FactLogger(__name__)

_SLICE_S: Final = 0.1
_SCAN_FACTOR: Final = 5
_STALE_ROUND_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class RelayStats:
    """Numbers of messages in one round of a relay, by outcome.

    Attributes:
        published: Confirmed by their target, and deleted from the outbox.
        refused: Refused by their target; each refusal counts as an attempt.
        parked: Refused too often, and not tried again until unparked.
        deferred: Not published, without counting an attempt: the target is unavailable, or an earlier message of the
            key was not published.
    """

    published: int = 0
    refused: int = 0
    parked: int = 0
    deferred: int = 0

    def __add__(self, other: "RelayStats") -> "RelayStats":
        return RelayStats(*map(add, astuple(self), astuple(other)))


@dataclass(slots=True)
class _Route:
    """One target: its rows, its publisher, and where the scan of its keyed rows continues."""

    store: OutboxStore
    publisher: TargetPublisher
    position: OutboxPosition | None = None
    has_more: bool = False

    @property
    def name(self) -> str:
        return self.publisher.name


class OutboxRelay(ClosedAfterUse):
    """Publishes the rows of an outbox, for the targets it is given. ``run()`` until ``stop()``.

    Used by one thread; ``stop()`` and ``health()`` may be called from any. Rows for targets that this relay does not
    have are left to other relays; rows that no relay publishes are reported (``unserved_targets``, a log, a metric).

    Args:
        engine: The database of the outbox. The relay opens its own connections; ``close()`` closes them.
        targets: By the names that ``Outbox.add`` was given.
        outbox: The outbox to read; None is the default table.
        batch: Rows per transaction; up to ten times as many while a target is quick and rows come in faster than they
            go out, as long as their payloads have less than 8 MB together.
        poll_s: Pause when there is nothing to do: how late a message may be. On PostgreSQL (with psycopg) a
            notification ends the pause when a message is committed.
        max_attempts: Refusals after which a row is parked, with the reason.
        backoff: Between attempts at a refused row, and between attempts at a target that is unavailable.

    Attributes:
        name: Name of this kind of worker.
        abandoned: Always 0: a relay finishes the batch it works on.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    name = "OutboxRelay"
    abandoned = 0

    def __init__(
        self,
        engine: Engine,
        targets: Mapping[str, Target],
        *,
        outbox: Outbox | None = None,
        batch: int = 200,
        poll_s: float = 0.2,
        max_attempts: int = 5,
        backoff: Backoff = Backoff(base_s=0.5, cap_s=60.0),  # noqa: B008 - frozen
    ) -> None:
        require_targets(targets)
        own = own_engine(require_supported(engine))
        self._owned = own is not engine
        self._statements = AbortableEngine(own)
        self._engine = self._statements.engine
        require_positive("batch", batch)
        self.poll_s = require_seconds("poll_s", poll_s)
        self._max_attempts = require_positive("max_attempts", max_attempts)
        self._backoff = require_instance("backoff", backoff, Backoff)
        self._life = BlockingLifecycle("this OutboxRelay")
        self._closes_at_end = False
        self._last_round_s = float("-inf")
        self._failure = ""
        self._outage = OutageWatch("the database", "the outbox is not read and nothing of it is published")
        outbox = Outbox() if outbox is None else outbox
        require_instance("outbox", outbox, Outbox)
        for name in targets:
            outbox.require_target(name)
        self._table = table = outbox.table
        self._listener = listener_for(engine, table)
        dialect = dialect_named(engine.dialect.name)
        self._unserved = UnservedTargets(table, targets, dialect)
        self._routes = [
            _Route(
                OutboxStore(table, require_text("a target's name", name), dialect),
                TargetPublisher(name, target, batch=batch, backoff=backoff),
            )
            for name, target in targets.items()
        ]

    # ------------------------------------------------------------------ life
    def run(self) -> None:
        """Publish until stopped. Lost connections, to the database or to a target, are logged and retried."""
        self._life.start()
        names = ", ".join(route.name for route in self._routes)
        logger.info("worker starts: relay of %(table)s to %(targets)s", table=self._table, targets=names)
        failures = 0
        try:
            while not self._life.is_stopping:
                try:
                    self.relay_once()
                    failures = 0
                    self._outage.succeeded()
                except DbWriteError as error:
                    if self._life.is_forced:
                        logger.warning("relay stopped by force; its rows stay in the outbox", table=self._table)
                        break
                    failures += 1
                    self._failure = f"the outbox cannot be read ({type(error).__name__}): {error}"
                    if isinstance(error, InfrastructureError):
                        self._outage.failed(error, address=database_address(self._engine))
                    else:
                        logger.failure(logging.WARNING, "the outbox cannot be read, trying again", error)
                    self._life.sleep(self._backoff.delay_s(failures))
                if not any(route.has_more for route in self._routes):
                    self._pause()
        finally:
            self._outage.close()
            for route in self._routes:
                route.publisher.outage.close()
            logger.info("worker stopped: relay of %(table)s", table=self._table)
            if self._closes_at_end:
                self._release()
            self._life.finish()

    def stop(self) -> None:
        """Request the end: the current batch is published and settled.

        A second call aborts a running statement or the opening of a connection, and defers the rest of a batch that is
        published one by one. The transaction is rolled back: messages that were published without its COMMIT are
        published again. A running call of a target is not interrupted: the target has its own timeout.

        Takes no lock, so signal handlers and other threads may call it.
        """
        if self._life.request_stop():
            self._statements.abort()
            if self._listener is not None:
                self._listener.abort()

    def health(self) -> Health:
        """Return whether the relay publishes now. Sends nothing, never raises.

        It is ready while its last round succeeded and every target was available when it was last used.
        """
        return Health(status=self._life.status, reason=self._problem())

    def _problem(self) -> str:
        if self._failure:
            return self._failure
        if self.unavailable_targets:
            return f"target unavailable: {', '.join(self.unavailable_targets)}"
        is_stale = time.monotonic() - self._last_round_s > _STALE_ROUND_S + self.poll_s
        return "no round has ended lately" if is_stale else ""

    @property
    def unavailable_targets(self) -> list[str]:
        """Targets that could not be reached when they were last tried."""
        return [route.name for route in self._routes if route.publisher.failures]

    @property
    def unserved_targets(self) -> list[str]:
        """Targets with overdue rows that this relay does not serve: typos, or another relay is missing."""
        return sorted(self._unserved.ages_s)

    def close(self) -> None:
        """Stop, wait for the end, and close the connections that the relay opened. The caller closes the targets.

        It may be called twice. Called by a target of the relay it only stops, and ``run()`` closes at its end.
        """
        self._life.stop()
        if not self._life.wait_ended():
            self._closes_at_end = True
            return
        self._release()

    def _release(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._owned:
            self._engine.dispose()

    # ------------------------------------------------------------------ one round
    def relay_once(self) -> RelayStats:
        """Publish at most one batch for each target.

        Raises:
            DbWriteError: The database failed. Rows published but not deleted are published again.
        """
        done = RelayStats()
        for route in self._routes:
            if route.publisher.backs_off:
                route.has_more = False
                continue
            try:
                # One transaction per target, so that a target that refuses messages does not delay the others.
                with DbSession(self._engine) as session:
                    done += self._one_batch(session, route)
            except DbWriteError as error:
                raise if_missing(error, self._table) from error.__cause__
        if self._unserved.is_due:
            with DbSession(self._engine) as session:
                self._unserved.check(session)
        self._last_round_s = time.monotonic()
        self._failure = ""
        return done

    def drain(self, *, timeout_s: float = 30.0) -> RelayStats:
        """Publish until nothing is due, or the time is up. For tests, and for a clean end of a process.

        Rows that another relay has locked are left to it. If that relay has died, they stay locked until the server
        notices its end.
        """
        done, deadline = RelayStats(), time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            done += self.relay_once()
            if not any(route.has_more for route in self._routes):
                break
        return done

    def _one_batch(self, session: DbSession, route: _Route) -> RelayStats:
        messages = self._lock_batch(session, route)
        if not messages:
            return RelayStats()
        results = route.publisher.publish(messages, is_forced=lambda: self._life.is_forced)
        published = [
            one for one, (outcome, _) in zip(messages, results, strict=True) if outcome is PublishOutcome.PUBLISHED
        ]
        refused = [
            (after_refusal(one, max_attempts=self._max_attempts, backoff=self._backoff), reason)
            for one, (outcome, reason) in zip(messages, results, strict=True)
            if outcome is PublishOutcome.REFUSED
        ]
        if not published and not refused:
            route.has_more = False  # all deferred: not again before a pause
        route.store.settle(session, published=[one.seq for one in published], refused=refused)
        parked = sum(isinstance(decision, Park) for decision, _ in refused)
        self._report(route, published, refused, parked)
        return RelayStats(len(published), len(refused), parked, len(messages) - len(published) - len(refused))

    def _lock_batch(self, session: DbSession, route: _Route) -> list[OutboxMessage]:
        """Lock a batch and return the messages that may be published now, the oldest first."""
        route.store.begin(session)
        unkeyed = route.store.lock_unkeyed(session, count=route.publisher.batch)
        keyed, oldest_age_s, has_more = self._lock_keyed(session, route)
        lag_s = max([oldest_age_s, *(message.age_s for message in unkeyed[:1])])
        set_gauge(OUTBOX_LAG_SECONDS, route.name, value=lag_s)
        route.has_more = has_more or bool(unkeyed) or bool(keyed)
        return sorted([*unkeyed, *keyed], key=lambda message: message.seq)

    def _lock_keyed(self, session: DbSession, route: _Route) -> tuple[list[OutboxMessage], float, bool]:
        """Return messages with a key, the age of the oldest due message, and whether the scan continues."""
        store, batch = route.store, route.publisher.batch
        limit = batch * (1 if route.position is None else _SCAN_FACTOR)
        seen, age_s = store.scan_keyed(session, after=route.position, count=limit)
        if not seen:
            route.position = None
            return [], 0.0, False
        wanted = plan(seen, batch=batch)
        locked = store.lock_heads(session, wanted.lock)
        chosen: list[OutboxMessage] = []
        if locked:
            keys = list(locked.values())
            last = max([*locked, *(seq for key in keys for seq in wanted.followers.get(key, ()))])
            # Re-read from the first row of each key: if an older row was committed since, the key belongs to
            # another relay.
            chosen = in_order(store.read_keys(session, keys, last=last, count=batch), locked.keys())
        at_the_end = wanted.examined == len(seen) < limit
        if at_the_end:
            route.position = None
        elif not chosen:
            # Other relays hold these rows, or their keys wait for an older row: scan further, or later rows would
            # wait too.
            route.position = store.position_of(session, seen[wanted.examined - 1].seq)
        return chosen, age_s, not at_the_end

    def _report(
        self,
        route: _Route,
        published: list[OutboxMessage],
        refused: list[tuple[RetryRow | Park, str]],
        parked: int,
    ) -> None:
        _count_published(route.name, published)
        count(OUTBOX_REFUSED_TOTAL, route.name, n=len(refused))
        count(OUTBOX_PARKED_TOTAL, route.name, n=parked)
        for decision, reason in refused:
            facts = {"target": route.name, "seq": decision.seq, "attempt": decision.attempts, "reason": reason}
            if isinstance(decision, Park):
                logger.error("outbox row %(seq)s parked: target %(target)s refused it %(attempt)s times", **facts)
            else:
                logger.warning(
                    "outbox row %(seq)s refused by target %(target)s, attempt %(attempt)s of %(max_attempts)s",
                    max_attempts=self._max_attempts,
                    **facts,
                )

    def _pause(self) -> None:
        """Wait until the next poll, or until the database reports a new row."""
        if self._listener is None:
            self._life.sleep(self.poll_s)
            return
        deadline = time.monotonic() + self.poll_s
        while not self._life.is_stopping and (left_s := deadline - time.monotonic()) > 0:
            if self._listener.wait(min(left_s, _SLICE_S)):
                return


@never_raises
def _count_published(target: str, published: list[OutboxMessage]) -> None:
    # One lookup of the labels for a batch.
    OUTBOX_PUBLISHED_TOTAL.labels(target).inc(len(published))
    histogram = OUTBOX_DELIVERY_SECONDS.labels(target)
    for message in published:
        histogram.observe(message.age_s)
