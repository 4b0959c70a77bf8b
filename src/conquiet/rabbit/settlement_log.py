"""Log a message that was not processed: its id, attempt n of m, its disposition and the reason, but no contents."""

import logging
from typing import Final

from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.rabbit.dead_letter_headers import dead_queue
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.settle import Disposition, Exhausted, Verdict
from conquiet.rabbit.syncer import ContractBroken

logger = FactLogger("conquiet.rabbit.dispatcher")  # the name that operators filter by

_DESTINATION: Final = {
    Disposition.DROP: "dropped",
    Disposition.REQUEUE: "returned to the queue for another attempt",
    Disposition.DEAD_LETTER: "dead-lettered",
    Disposition.MOVE: "moved to %(to)s",
}
_STOPPING: Final = {
    Disposition.STOP: "fatal error, the consumer stops",
    Disposition.DEAD_LETTER_AND_STOP: "fatal error, the consumer stops and dead-letters the message",
}
_WARNINGS: Final = frozenset({Disposition.DROP, Disposition.REQUEUE})
"""Dispositions that are logged as warnings; the others are errors."""


def report_unprocessed(
    delivery: Delivery,
    verdict: Verdict,
    disposition: Disposition,
    attempt: tuple[int, int] | None,
    *,
    tracebacks: bool,
) -> None:
    """Log disposition and reason of a message that was not processed.

    Args:
        delivery: The message.
        verdict: The reason why it was not processed.
        disposition: How it is settled.
        attempt: Number of the attempt, and the maximum; None if unknown.
        tracebacks: Log the whole traceback of the syncer's error.
    """
    level = logging.WARNING if disposition in _WARNINGS else logging.ERROR
    if not logger.is_enabled(level):
        return
    queue, message_id = delivery.queue, delivery.message_id
    facts: dict[str, object] = {
        "queue": queue,
        "delivery_tag": delivery.tag,
        "message_id": None if message_id is None else printable(message_id),
        "redelivered": delivery.redelivered,
        "verdict": type(verdict).__name__,
        "disposition": disposition.value,
        "reason": verdict.reason,
    }
    error = verdict.error if isinstance(verdict, ContractBroken) else None
    why = ": %(reason)s" if error is None else ""
    if disposition in _STOPPING:
        # Logs class, line and frames of the exception, not its text: that may quote the message.
        logger.failure(logging.ERROR, _STOPPING[disposition] + why, error, tracebacks=tracebacks, **facts)
        return
    text = "message %(message_id)s not processed" if message_id is not None else "message not processed"
    if attempt is not None and not isinstance(verdict, Exhausted):
        text += ", attempt %(attempt)s of %(max_attempts)s"
        facts["attempt"], facts["max_attempts"] = attempt
    if disposition is Disposition.MOVE:
        facts["to"] = dead_queue(queue)
    logger.failure(level, f"{text}, {_DESTINATION[disposition]}{why}", error, tracebacks=tracebacks, **facts)
