"""Log lines for failed attempts and dead letters: event, id, attempt n of m, next try, and no payload."""

import logging
import time

from conquiet.core.log import FactLogger
from conquiet.core.settlement import DeadLetter, RetryLater
from conquiet.processor.envelope import Envelope
from conquiet.runtime.message import RuntimeMessage

logger = FactLogger("conquiet.processor.settler")  # the name that operators know


def report_retry(message: RuntimeMessage, envelope: Envelope, settlement: RetryLater, *, tracebacks: bool) -> None:
    """Log a failed attempt that will be retried."""
    if not logger.is_enabled(logging.WARNING):
        return
    logger.failure(
        logging.WARNING,
        "handler of %(event_name)s failed for message %(message_id)s, attempt %(attempt)s of %(max_attempts)s, "
        "next try in %(next_try_s)s s",
        settlement.failure,
        tracebacks=tracebacks,
        max_attempts=settlement.max_attempts,
        next_try_s=round(settlement.delay_ms / 1000, 1),
        **_facts(message, envelope),
    )


def report_dead(
    message: RuntimeMessage, envelope: Envelope | None, settlement: DeadLetter, *, tracebacks: bool
) -> None:
    """Log that a message was dead-lettered, with the reason."""
    if not logger.is_enabled(logging.ERROR):
        return
    attempt = ", attempt %(attempt)s of %(max_attempts)s" if settlement.max_attempts is not None else ""
    event = " of event %(event_name)s" if envelope is not None else ""
    logger.failure(
        logging.ERROR,
        f"message %(message_id)s{event} dead-lettered (%(dead_reason)s){attempt}",
        settlement.failure,
        tracebacks=tracebacks,
        dead_reason=settlement.reason,
        note=settlement.note,
        max_attempts=settlement.max_attempts,
        **_facts(message, envelope),
    )


def _facts(message: RuntimeMessage, envelope: Envelope | None) -> dict[str, object]:
    """Return the facts of a message for the log, without its payload."""
    facts: dict[str, object] = {"stream": message.stream, "message_id": message.id}
    facts["deliveries"] = message.delivery_count
    if envelope is not None:
        facts |= {"event_name": envelope.event, "message_id": envelope.id, "attempt": envelope.attempt}
        facts["entry_id"] = message.id
    if message.started_at:
        facts["duration_s"] = round(time.monotonic() - message.started_at, 3)
    return facts
