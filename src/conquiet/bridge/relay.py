"""The relay: takes committed rows out of the outbox to where they are meant to go.

    look ──▶ lock ──▶ publish ──▶ delete ──▶ COMMIT
                         │
                         └─ died here: the row is still there, and is published again with the same id

Publish first, delete second. A crash in between publishes twice, and the inbox at the other side
knows the id; the other order would lose the message. Any number of relays may run, on any hosts: rows
that one has locked are passed over by the others, and a key belongs to whoever holds its oldest row.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from sqlalchemy import event
from sqlalchemy.engine import Engine

from conquiet.bridge.desk import Desk, Position
from conquiet.bridge.metrics import observe_lag, observe_published, observe_refused, observe_unavailable
from conquiet.bridge.outbox import Outbox
from conquiet.bridge.policy import Letter, Outcome, Park, after_refusal, in_order, plan
from conquiet.bridge.schema import if_missing
from conquiet.bridge.targets import HELD, PUBLISHED, Target, Verdicts
from conquiet.db.dialects import is_mysql, require_supported
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError, ConquietError, DbWriteError
from conquiet.kernel.backoff import Backoff
from conquiet.kernel.lifecycle import Lifecycle
from conquiet.kernel.validation import require_positive, require_seconds, require_text

logger = logging.getLogger(__name__)

_SLICE_S: Final = 0.25
_SCAN_FACTOR: Final = 5

# If a relay's host vanishes without a word, its locks stay until the server gives the connection up. By default
# that takes hours; a live relay never leaves a transaction idle for longer than a batch takes to publish.
_IDLE_LIMIT_S: Final = 120


@dataclass(frozen=True, slots=True)
class Relayed:
    """What one round did."""

    published: int = 0
    refused: int = 0
    parked: int = 0
    held: int = 0

    def __add__(self, other: "Relayed") -> "Relayed":
        return Relayed(
            self.published + other.published,
            self.refused + other.refused,
            self.parked + other.parked,
            self.held + other.held,
        )


@dataclass(slots=True)
class _Route:
    """One target, and how things stand with it."""

    name: str
    target: Target
    desk: Desk
    batch: int
    position: Position | None = None
    failures: int = 0
    not_before: float = 0.0
    more: bool = False


class OutboxRelay:
    """Publishes what is in an outbox, for the targets it is given. ``run()`` until ``stop()``.

    Used by one thread; ``stop()`` may come from anywhere. Rows for targets that this relay does not
    have are left to others.

    Args:
        engine: Where the outbox is. The relay opens connections of its own beside it; ``close()`` closes those.
        targets: By the names that ``Outbox.add`` was given.
        outbox: Which outbox.
        batch: Rows per transaction. They are in memory together.
        poll_s: Pause when there is nothing to do: how late a message may be.
        max_attempts: After so many refusals a row is parked, with the reason.
        backoff: Between attempts at a refused row, and between attempts at a target that cannot be reached.

    Raises:
        ConfigurationError: A setting is wrong.
    """

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
        if not targets:
            raise ConfigurationError("a relay needs at least one target")
        _require_targets(targets)
        self._engine = _own_engine(require_supported(engine))
        self._owned = self._engine is not engine
        self._batch = require_positive("batch", batch)
        self.poll_s = require_seconds("poll_s", poll_s)
        self._max_attempts = require_positive("max_attempts", max_attempts)
        self._backoff = backoff
        self._life = Lifecycle("this OutboxRelay")
        self._table = table = (outbox or Outbox()).table
        mysql = is_mysql(engine)
        self._routes = [
            _Route(require_text("a target's name", name), target, Desk(table, name, mysql=mysql), self._batch)
            for name, target in targets.items()
        ]

    # ------------------------------------------------------------------ life
    def run(self) -> None:
        """Publish until stopped. Lost connections, to the database or to a target, are logged and waited for."""
        self._life.start()
        failures = 0
        try:
            while not self._life.is_stopping:
                try:
                    self.relay_once()
                    failures = 0
                except DbWriteError as error:
                    failures += 1
                    logger.warning(
                        "outbox not readable, trying again",
                        extra={"error": type(error).__name__, "reason": str(error)},  # our own text: no payload in it
                    )
                    self._sleep(self._backoff.delay_s(failures))
                if not any(route.more for route in self._routes):
                    self._sleep(self.poll_s)
        finally:
            self._life.finish()

    def stop(self) -> None:
        """Ask for the end: the batch in hand is finished. Only assigns, so it may be called from a signal handler."""
        self._life.stop()

    @property
    def reaches_all_targets(self) -> bool:
        """False while a target could not be reached when it was last tried."""
        return not any(route.failures for route in self._routes)

    def close(self) -> None:
        """Close the connections we opened. Targets are the caller's."""
        if self._owned:
            self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ one round
    def relay_once(self) -> Relayed:
        """Publish at most one batch for each target.

        Raises:
            DbWriteError: The database. What was published and not yet deleted will be published again.
        """
        done = Relayed()
        for route in self._routes:
            if time.monotonic() < route.not_before:
                route.more = False
                continue
            try:
                # Its own transaction for each target: what one refuses or cannot take stays out of the others' way.
                with DbSession(self._engine) as session:
                    done += self._one_batch(session, route)
            except DbWriteError as error:
                raise if_missing(error, self._table) from error.__cause__
        return done

    def drain(self, *, timeout_s: float = 30.0) -> Relayed:
        """Publish until nothing is due, or the time is up. For tests, and for a clean end of a process."""
        done, deadline = Relayed(), time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            done += self.relay_once()
            if not any(route.more for route in self._routes):
                break
        return done

    def _one_batch(self, session: DbSession, route: _Route) -> Relayed:
        letters = self._claim(session, route)
        if not letters:
            return Relayed()
        began = time.monotonic()
        verdicts = self._publish(route, letters)
        self._fit_batch(route, len(letters), time.monotonic() - began)
        outcomes = [outcome for outcome, _ in verdicts]
        published = [one for one, outcome in zip(letters, outcomes, strict=True) if outcome is Outcome.PUBLISHED]
        refused = [
            (after_refusal(one, max_attempts=self._max_attempts, backoff=self._backoff), reason)
            for one, (outcome, reason) in zip(letters, verdicts, strict=True)
            if outcome is Outcome.REFUSED
        ]
        if not published and not refused:
            route.more = False  # all held: not again before a pause
        route.desk.settle(session, published=[one.seq for one in published], refused=refused)
        parked = sum(isinstance(decision, Park) for decision, _ in refused)
        self._tell(route, published, refused, parked)
        return Relayed(len(published), len(refused), parked, len(letters) - len(published) - len(refused))

    def _claim(self, session: DbSession, route: _Route) -> list[Letter]:
        """Lock a batch and return what of it may go out now, the oldest first."""
        route.desk.begin(session)
        free = route.desk.take(session, count=route.batch)
        keyed, waits_s, more = self._claim_keyed(session, route)
        observe_lag(route.name, max([waits_s, *(letter.age_s for letter in free[:1])]))
        route.more = more or bool(free) or bool(keyed)
        return sorted([*free, *keyed], key=lambda letter: letter.seq)

    def _claim_keyed(self, session: DbSession, route: _Route) -> tuple[list[Letter], float, bool]:
        """Return letters with a key, the age of the oldest one that is due, and whether there is more to look at."""
        desk, count = route.desk, route.batch * (1 if route.position is None else _SCAN_FACTOR)
        seen, age_s = desk.scan(session, after=route.position, count=count)
        if not seen:
            route.position = None
            return [], 0.0, False
        wanted = plan(seen, batch=route.batch)
        locked = desk.lock(session, wanted.lock)
        chosen: list[Letter] = []
        if locked:
            keys = list(locked.values())
            last = max([*locked, *(seq for key in keys for seq in wanted.followers.get(key, ()))])
            # Read again from the beginning of each key: what is older than the row we locked, and was committed
            # only now, makes the key somebody else's.
            chosen = in_order(desk.oldest(session, keys, last=last, count=route.batch), locked.keys())
        at_the_end = wanted.examined == len(seen) < count
        if at_the_end:
            route.position = None
        elif not chosen:
            # Others have these, or their keys wait for an older row: look further on, or what lies behind them
            # would wait too.
            route.position = desk.position_of(session, seen[wanted.examined - 1].seq)
        return chosen, age_s, not at_the_end

    def _publish(self, route: _Route, letters: list[Letter]) -> Verdicts:
        try:
            verdicts = route.target.publish(letters)
        except (ConquietError, OSError) as error:
            self._put_off(route, error)
            return [HELD] * len(letters)
        except Exception as error:  # noqa: BLE001 - a target of the user's may raise anything, because of one letter
            logger.warning(
                "target failed, trying letter by letter", extra={"target": route.name, "error": type(error).__name__}
            )
            return self._isolate(route, letters)
        _require_verdicts(route, verdicts, len(letters))
        route.failures = 0
        return verdicts

    def _fit_batch(self, route: _Route, letters: int, took_s: float) -> None:
        """Ask for less at a time where publishing takes so long that the database would give our transaction up."""
        if took_s > _IDLE_LIMIT_S / 3:
            route.batch = max(1, int(letters * _IDLE_LIMIT_S / 6 / took_s))
            logger.warning(
                "target is slow, smaller batches for it",
                extra={"target": route.name, "letters": letters, "took_s": round(took_s, 1), "batch": route.batch},
            )
        else:
            route.batch = min(self._batch, route.batch * 2)

    def _isolate(self, route: _Route, letters: list[Letter]) -> Verdicts:
        """Find the letter that breaks the target. What went out before is published again, which is allowed."""
        verdicts: Verdicts = []
        blocked: set[bytes] = set()
        failures: list[Exception] = []
        for letter in letters:
            if letter.key is not None and letter.key in blocked:
                verdicts.append(HELD)
                continue
            try:
                answer = route.target.publish([letter])
            except (ConquietError, OSError) as error:
                self._put_off(route, error)
                return [*verdicts, *[HELD] * (len(letters) - len(verdicts))]
            except Exception as error:  # noqa: BLE001 - as above; its text may quote the payload
                answer = [(Outcome.REFUSED, type(error).__name__)]
                failures.append(error)
            _require_verdicts(route, answer, 1)
            verdicts += answer
            if letter.key is not None and answer[0][0] is not Outcome.PUBLISHED:
                blocked.add(letter.key)
        if len(failures) > 1 and PUBLISHED not in verdicts:
            # Not one of several was taken: it is the target, whatever it raises when it is away.
            self._put_off(route, failures[0])
            return [HELD] * len(letters)
        route.failures = 0
        return verdicts

    def _put_off(self, route: _Route, error: Exception) -> None:
        # Not the letters' fault: they keep their attempts, and the target gets a rest.
        route.failures += 1
        route.not_before = time.monotonic() + self._backoff.delay_s(route.failures)
        observe_unavailable(route.name)
        logger.warning(
            "target not reachable, letters stay in the outbox",
            extra={"target": route.name, "error": type(error).__name__, "failures": route.failures},
        )

    def _tell(self, route: _Route, published: list[Letter], refused: list[Any], parked: int) -> None:
        observe_published(route.name, [letter.age_s for letter in published])
        if refused:
            observe_refused(route.name, len(refused), parked)
            for decision, reason in refused:
                logger.warning(
                    "letter parked" if isinstance(decision, Park) else "letter refused",
                    extra={
                        "target": route.name,
                        "seq": decision.seq,
                        "attempts": decision.attempts,
                        "reason": reason,
                    },
                )

    def _sleep(self, duration_s: float) -> None:
        # A plain flag cannot wake a sleeper, and an event must not be set in a signal handler: so, slices.
        deadline = time.monotonic() + duration_s
        while not self._life.is_stopping and (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(left_s, _SLICE_S))


def _require_verdicts(route: _Route, verdicts: object, letters: int) -> None:
    """A target of the user's may answer anything; a guess would delete what was not published."""
    if not isinstance(verdicts, Sequence) or len(verdicts) != letters or not all(map(_is_verdict, verdicts)):
        raise ConfigurationError(
            f"the target {route.name!r} must answer publish() with one (Outcome, reason) for each letter, in their "
            "order; its letters stay in the outbox"
        )


def _is_verdict(answer: object) -> bool:
    match answer:
        case (Outcome(), str()):
            return True
        case _:
            return False


def _own_engine(engine: Engine) -> Engine:
    """Return an engine with connections of our own: same address and credentials, other session settings.

    Changing them on the caller's connections would follow these back into the caller's pool.
    """
    if not is_mysql(engine):  # SQLite: a private memory database lives in one connection
        return engine
    own = Engine(engine.pool.recreate(), engine.dialect, engine.url, hide_parameters=True)

    @event.listens_for(own, "connect")
    def prepare(connection: Any, _: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute(f"SET SESSION wait_timeout = {_IDLE_LIMIT_S}")

    return own


def _require_targets(targets: object) -> None:
    if not isinstance(targets, Mapping) or not all(map(_is_target, targets.values())):
        raise ConfigurationError(
            "targets must be a dict of names and targets: ToStream, ToProcessor, ToRabbit, or one of yours"
        )


def _is_target(target: object) -> bool:
    """Not the class itself, whose publish() would fail of every letter, and have it parked."""
    return callable(getattr(target, "publish", None)) and not isinstance(target, type)
