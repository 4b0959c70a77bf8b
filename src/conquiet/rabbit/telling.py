"""What is said in the log about a message that was not processed: everything but its contents."""

import logging
from typing import Any

from conquiet.rabbit.decode import Unreadable
from conquiet.rabbit.decrypt import KeyFault
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.settle import Settlement, Verdict
from conquiet.rabbit.syncer import ContractBroken

logger = logging.getLogger(__name__)


def tell_unprocessed(queue: str, delivery: Delivery, verdict: Verdict, settlement: Settlement) -> None:
    """Log what became of it, and why."""
    facts: dict[str, Any] = {
        "queue": queue,
        "delivery_tag": delivery.tag,
        "redelivered": delivery.redelivered,
        "verdict": type(verdict).__name__,
        "settlement": settlement.value,
    }
    if isinstance(verdict, Unreadable | ContractBroken | KeyFault):
        facts["reason"] = verdict.reason
    if settlement in {Settlement.STOP, Settlement.DEAD_LETTER_AND_STOP}:
        # The exception itself stays out of the log: its text may quote the message.
        logger.error("fatal error, the consumer stops", extra=facts)
    else:
        logger.warning("message not processed", extra=facts)
