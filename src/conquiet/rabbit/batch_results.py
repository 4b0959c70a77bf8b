"""What a batch syncer may return, and what that means for each of its messages. Pure, but for the current deliveries.

True                                     all are done
False                                    the call failed as a whole: the batch is halved
a list of None and exceptions            the outcome of each message, in their order: those with None are done
anything else                            the contract is broken
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from conquiet.core import causation
from conquiet.core.batch_run import Outcome
from conquiet.errors import ConflictError, LifecycleError, MessageInProgressError
from conquiet.rabbit.delivery import cause_named_by
from conquiet.rabbit.spans import RefusedBySyncer
from conquiet.rabbit.syncer import (
    DONE,
    POSTPONED,
    REFUSED,
    ContractBroken,
    Interruption,
    Requeue,
    SyncerResult,
    interpret_error,
    interpret_result,
)

if TYPE_CHECKING:
    from conquiet.rabbit.delivery import Delivery

CURRENT_BATCH: Final[ContextVar[list["Delivery"]]] = ContextVar("conquiet_rabbit_deliveries")
"""The deliveries that the batch syncer is handling; set for each call."""


class RefusedError(Exception):
    """The outcome of a message that the syncer refused, as it does for a call by returning False."""


class BrokenError(Exception):
    """The syncer returned something that it must not return."""

    def __init__(self, verdict: ContractBroken) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


def current_deliveries() -> "list[Delivery]":
    """Return the deliveries whose messages the calling batch syncer is handling, in their order.

    Raises:
        LifecycleError: No batch is being handled here.
    """
    try:
        return CURRENT_BATCH.get()
    except LookupError:
        raise LifecycleError("no batch is being handled here: call this from inside a batch syncer") from None


@contextmanager
def only_deliveries(positions: Sequence[int]) -> Iterator[None]:
    """Let ``current_deliveries`` return those of the messages that the handler gets, as long as the block runs."""
    deliveries = current_deliveries()
    token = CURRENT_BATCH.set([deliveries[position] for position in positions])
    try:
        yield
    finally:
        CURRENT_BATCH.reset(token)


def outcomes_of(result: object) -> "list[Any] | None":
    """Return the outcomes in what a batch syncer has returned; None if all messages are done.

    Raises:
        RefusedError: It refused the call.
        BrokenError: It returned something else.
    """
    if isinstance(result, list) and any(isinstance(one, Exception) for one in result):
        return result
    verdict = interpret_result(result)
    if verdict is REFUSED:
        raise RefusedError
    if isinstance(verdict, ContractBroken):
        raise BrokenError(verdict)
    return None


def failure_of(outcome: Outcome) -> BaseException | None:
    """Return what a span shows as the failure of one message; ``Requeue`` is none."""
    match outcome:
        case RefusedError() | BrokenError():
            return RefusedBySyncer()
        case Requeue():
            return None
        case _:
            return outcome


def report_of(outcome: Outcome) -> SyncerResult | Interruption:
    """Return what the run of one message has ended with."""
    match outcome:
        case None:
            return DONE
        case MessageInProgressError():
            # Another run of the message holds its inbox row: counted, it could be dead-lettered while that commits.
            return POSTPONED
        case RefusedError() | ConflictError():
            return REFUSED
        case BrokenError():
            return outcome.verdict
        case _:
            return interpret_error(outcome)


def _cause() -> tuple[str, str] | None:
    """Return the only delivery of a batch. Of several it is not known which one causes what the syncer emits."""
    batch = CURRENT_BATCH.get(())
    return cause_named_by(batch[0]) if len(batch) == 1 else None


causation.add_source(_cause)
