"""Count, log and report the outcome of each message. Nothing here settles a message."""

import logging
from collections.abc import Sequence

from conquiet.core.log import FactLogger
from conquiet.errors import InfrastructureError
from conquiet.runtime.engine_events import EngineError, Failed, Succeeded
from conquiet.runtime.executor import ENDS
from conquiet.runtime.message import HandlerState, RuntimeMessage
from conquiet.runtime.parts import EngineParts

logger = FactLogger(__name__)

# Bound once: in Python 3.11 every access to a member of an enum class costs as much as a function call.
_SUCCEEDED, _FAILED = HandlerState.SUCCEEDED, HandlerState.FAILED

_FAILED_TEXT = (
    "handler failed for message %(message_id)s of %(stream)s, delivery %(deliveries)s, delivered again once it is idle "
    "for %(next_try_s)s s"
)
_FAILED_TEXT_OF_MOST = _FAILED_TEXT.replace("%(deliveries)s", "%(deliveries)s of %(max_deliveries)s")


class OutcomeReporter:
    """Reports outcomes of one engine.

    Args:
        parts: The parts that all parts of the engine share. Events, counts and handling times go to them.
    """

    def __init__(self, parts: EngineParts) -> None:
        self._dispatcher, self._subscribed = parts.events, parts.events.subscribed
        self._stats = parts.stats
        self._record_pace = parts.pace.record
        self._record_pace_of_many = parts.pace.record_many
        self._next_try_s = parts.settings.claim_idle_s
        self._max_deliveries = parts.settings.max_deliveries
        self._failed_text = _FAILED_TEXT if self._max_deliveries is None else _FAILED_TEXT_OF_MOST
        self._log_tracebacks = parts.settings.log_tracebacks

    def succeeded(self, message: RuntimeMessage, began: float) -> None:
        """Count and report a success."""
        duration_s = self._record_pace(began)
        stats = self._stats[message.stream]
        stats.succeeded += 1
        stats.handling_s.append(duration_s)
        message.progress = _SUCCEEDED
        if self._subscribed and Succeeded in self._subscribed:
            self._dispatcher.emit(Succeeded(message, duration_s))

    def succeeded_together(self, messages: Sequence[RuntimeMessage], began: float) -> None:
        """Count and report the successes of one call."""
        duration_s = self._record_pace_of_many(began, len(messages))
        is_wanted = Succeeded in self._subscribed
        for message in messages:
            stats = self._stats[message.stream]
            stats.succeeded += 1
            stats.handling_s.append(duration_s)
            message.progress = _SUCCEEDED
            if is_wanted:
                self._dispatcher.emit(Succeeded(message, duration_s))

    def failed(self, message: RuntimeMessage, error: BaseException, began: float, *, is_logged: bool = False) -> None:
        """Count and report a failure."""
        duration_s = self._record_pace(began)
        stats = self._stats[message.stream]
        stats.failed += 1
        stats.handling_s.append(duration_s)
        message.progress = _FAILED
        # An outage is logged once, not for each message. The processor logs messages that it stores.
        if not is_logged and logger.is_enabled(logging.WARNING) and not isinstance(error, InfrastructureError):
            self._log_failure(message, error, duration_s)
        if not self._subscribed:
            return
        if Failed in self._subscribed:
            self._dispatcher.emit(Failed(message, error, duration_s))
        if EngineError in self._subscribed and not (isinstance(error, ENDS) or message.lease_lost):
            # SPEC(002 CM-001.14): any error during processing, including a handler's, is an ``error`` event. A lost
            # lease is reported where it is detected.
            self._dispatcher.emit(EngineError(error, message))

    def _log_failure(self, message: RuntimeMessage, error: BaseException, duration_s: float) -> None:
        logger.failure(
            logging.WARNING,
            self._failed_text,
            error,
            tracebacks=self._log_tracebacks,
            message_id=message.id,
            stream=message.stream,
            deliveries=message.delivery_count,
            max_deliveries=self._max_deliveries,
            duration_s=int(duration_s * 1000) / 1000,  # round() takes four times as long
            next_try_s=self._next_try_s,
        )
