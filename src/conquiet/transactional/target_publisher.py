"""Publish to one target: back off while it is unavailable, isolate a message that breaks it, adapt the batch size.

Knows no database. The relay decides what is published and settles the rows afterwards.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from conquiet.core import tracing
from conquiet.core.backoff import Backoff
from conquiet.core.functions import require_plain_function
from conquiet.core.log import FactLogger
from conquiet.errors import ConfigurationError, ConquietError
from conquiet.metrics.outages import OutageWatch
from conquiet.metrics.registry import OUTBOX_UNAVAILABLE_TOTAL
from conquiet.metrics.safety import count
from conquiet.transactional.relay_decisions import OutboxMessage, PublishOutcome
from conquiet.transactional.targets import DEFERRED, PUBLISHED, Results, Target

logger = FactLogger(__name__)

IDLE_LIMIT_S: Final = 120
"""Longest pause of a relay's transaction between two statements: the server closes the connection after that.

If a relay's host vanishes, its locks stay until the server closes the connection. By default that takes hours; a live
relay never leaves a transaction idle for longer than a batch takes to publish.
"""

_GROWTH: Final = 10
"""Factor by which a relay enlarges its batch while it is behind."""
_QUICK_S: Final = 0.25
"""A batch that took longer is not followed by a larger one."""
_MAX_BYTES: Final = 8_000_000
"""Payloads of a batch that is larger than usual: they are in memory together."""


class TargetPublisher:
    """One target with its state.

    Attributes:
        name: The target's name.
        batch: How many messages to publish at a time.
        failures: Consecutive times that the target was unavailable.
    """

    def __init__(self, name: str, target: Target, *, batch: int, backoff: Backoff) -> None:
        self.name = name
        self.batch = batch
        self.failures = 0
        self.outage = OutageWatch(f"the outbox's target {name!r}", "its messages stay in the outbox")
        self._target = target
        self._usual_batch = batch
        self._backoff = backoff
        self._not_before = 0.0

    @property
    def backs_off(self) -> bool:
        """True while the relay waits before it tries an unavailable target again."""
        return time.monotonic() < self._not_before

    def publish(self, messages: list[OutboxMessage], *, is_forced: Callable[[], bool] = lambda: False) -> Results:
        """Publish a batch and return a result for each message.

        Args:
            messages: The batch.
            is_forced: Returns True after a second ``stop()``: the rest of the batch is deferred.

        Raises:
            ConfigurationError: The target did not return results. The state of the batch is unknown.
        """
        began = time.monotonic()
        try:
            if tracing.active is None:
                return self._publish(messages, is_forced)
            with self._spans(tracing.active, messages):
                return self._publish(messages, is_forced)
        finally:
            self._adjust_batch(messages, time.monotonic() - began)

    @contextmanager
    def _spans(self, tracer: tracing.Tracing, messages: list[OutboxMessage]) -> Iterator[None]:
        """Open a span for each message, a child of the span that wrote its row. The messages carry its context on."""
        system = str(getattr(self._target, "system", "conquiet.outbox"))
        place = str(getattr(self._target, "stream", None) or getattr(self._target, "queue", None) or self.name)
        with ExitStack() as stack:
            for message in messages:
                span = tracer.send(
                    system,
                    place,
                    event=message.event,
                    message_id=message.message_id,
                    headers=message.headers,
                    parent=message.headers or {},
                )
                message.headers = span.headers
                # Not current: they are siblings. Each ends with the batch.
                stack.push(span.__exit__)
            yield

    def _publish(self, messages: list[OutboxMessage], is_forced: Callable[[], bool]) -> Results:
        try:
            results = self._target.publish(messages)
        except (ConquietError, OSError) as error:
            self._back_off(error)
            return [DEFERRED] * len(messages)
        except Exception as error:  # noqa: BLE001 - a user's target may raise anything because of one message
            logger.failure(logging.WARNING, "target failed, publishing one by one", error, target=self.name)
            return self._isolate(messages, is_forced)
        self._require_results(results, len(messages))
        self._reached()
        return results

    def _isolate(self, messages: list[OutboxMessage], is_forced: Callable[[], bool]) -> Results:
        """Find the message that breaks the target. Messages sent before are published again, which is allowed."""
        results: Results = []
        blocked: set[bytes] = set()
        failures: list[Exception] = []
        for message in messages:
            if is_forced():
                return [*results, *[DEFERRED] * (len(messages) - len(results))]
            if message.key is not None and message.key in blocked:
                results.append(DEFERRED)
                continue
            try:
                result = self._target.publish([message])
            except (ConquietError, OSError) as error:
                self._back_off(error)
                return [*results, *[DEFERRED] * (len(messages) - len(results))]
            except Exception as error:  # noqa: BLE001 - as above; its text may quote the payload
                result = [(PublishOutcome.REFUSED, type(error).__name__)]
                failures.append(error)
            self._require_results(result, 1)
            results += result
            if message.key is not None and result[0][0] is not PublishOutcome.PUBLISHED:
                blocked.add(message.key)
        if len(failures) > 1 and PUBLISHED not in results:
            # None of several was accepted: the target is unavailable, even if it raises another exception.
            self._back_off(failures[0])
            return [DEFERRED] * len(messages)
        self._reached()
        return results

    def _reached(self) -> None:
        self.failures = 0
        self.outage.succeeded()

    def _back_off(self, error: Exception) -> None:
        # Target unavailable: back off, and count no attempt.
        self.failures += 1
        self._not_before = time.monotonic() + self._backoff.delay_s(self.failures)
        count(OUTBOX_UNAVAILABLE_TOTAL, self.name)
        self.outage.failed(error)

    def _adjust_batch(self, messages: list[OutboxMessage], took_s: float) -> None:
        """Publish more at a time while rows come in faster; fewer where the server would close the idle transaction."""
        if took_s > IDLE_LIMIT_S / 3:
            self.batch = max(1, int(len(messages) * IDLE_LIMIT_S / 6 / took_s))
            logger.warning(
                "target is slow, smaller batches for it",
                target=self.name,
                messages=len(messages),
                took_s=round(took_s, 1),
                batch=self.batch,
            )
            return
        is_behind = len(messages) >= self.batch and took_s < _QUICK_S
        if is_behind and sum(len(message.payload) for message in messages) < _MAX_BYTES / 2:
            limit = self._usual_batch * _GROWTH
        else:
            limit = self._usual_batch
        self.batch = min(limit, self.batch * 2)

    def _require_results(self, results: object, messages: int) -> None:
        """Raise for anything else than results: a guess would delete what was not published."""
        if not isinstance(results, Sequence) or len(results) != messages or not all(map(_is_result, results)):
            raise ConfigurationError(
                f"the target {self.name!r} must return one (PublishOutcome, reason) for each message from publish(), "
                "in their order; its messages stay in the outbox"
            )


def require_targets(targets: object) -> None:
    """Raise ``ConfigurationError`` for anything but a dict of targets."""
    if not isinstance(targets, Mapping) or not all(map(_is_target, targets.values())):
        raise ConfigurationError(
            "targets must be a dict of names and targets: ToStream, ToProcessor, ToRabbit, or one of yours"
        )
    if not targets:
        raise ConfigurationError("a relay needs at least one target")
    for name, target in targets.items():
        require_plain_function(f"publish() of target {name!r}", target.publish)


def _is_result(result: object) -> bool:
    match result:
        case (PublishOutcome(), str()):
            return True
        case _:
            return False


def _is_target(target: object) -> bool:
    """Return False for a class in place of an object: its publish() would fail, and park every message."""
    return callable(getattr(target, "publish", None)) and not isinstance(target, type)
