"""The log lines of a message that was not processed: id, attempt n of m, what becomes of it and why; no contents."""

import logging
from typing import Final

from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.rabbit.dead_letter_headers import dead_queue, reason_of
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.settle import Disposition, Exhausted, Verdict
from conquiet.rabbit.syncer import ContractBroken

logger = FactLogger("conquiet.rabbit.dispatcher")  # where operators know it from

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
_GOES_ON: Final = frozenset({Disposition.DROP, Disposition.REQUEUE})
"""What is logged as a warning; the rest as an error."""


def report_unprocessed(
    delivery: Delivery,
    verdict: Verdict,
    disposition: Disposition,
    attempt: tuple[int, int] | None,
    *,
    tracebacks: bool,
) -> None:
    """Log what becomes of a message that was not processed, and why; with ``tracebacks``, the syncer's whole one.

    Args:
        delivery: The message.
        verdict: Why it was not processed.
        disposition: What becomes of it.
        attempt: Which attempt it was, and of how many; None if that is not known.
        tracebacks: Whether the traceback of the syncer's error is logged as a whole.
    """
    level = logging.WARNING if disposition in _GOES_ON else logging.ERROR
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
        "reason": reason_of(verdict),
    }
    error = verdict.error if isinstance(verdict, ContractBroken) else None
    why = ": %(reason)s" if error is None else ""
    if disposition in _STOPPING:
        # Of the exception its class, line and frames: its text may quote the message.
        logger.failure(logging.ERROR, _STOPPING[disposition] + why, error, tracebacks=tracebacks, **facts)
        return
    text = "message %(message_id)s not processed" if message_id is not None else "message not processed"
    if attempt is not None and not isinstance(verdict, Exhausted):
        text += ", attempt %(attempt)s of %(max_attempts)s"
        facts["attempt"], facts["max_attempts"] = attempt
    if disposition is Disposition.MOVE:
        facts["to"] = dead_queue(queue)
    logger.failure(level, f"{text}, {_DESTINATION[disposition]}{why}", error, tracebacks=tracebacks, **facts)
