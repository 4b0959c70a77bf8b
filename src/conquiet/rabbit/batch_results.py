"""Derive the outcome of each message from the result of a batch syncer. Pure, except for the current deliveries.

True                                     all messages are done
False                                    the call failed as a whole: the batch is halved
a list of None and exceptions            the outcome of each message, in their order: None is done
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
    Postpone,
    SyncerResult,
    interpret_error,
    interpret_result,
)

if TYPE_CHECKING:
    from conquiet.rabbit.delivery import Delivery

CURRENT_BATCH: Final[ContextVar[list["Delivery"]]] = ContextVar("conquiet_rabbit_deliveries")
"""The deliveries that the batch syncer is handling. Set for each call."""


class RefusedError(Exception):
    """The outcome of each message of a call for which the syncer returned False."""


class BrokenError(Exception):
    """The syncer returned a value that the contract does not allow."""

    def __init__(self, verdict: ContractBroken) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


def current_deliveries() -> "list[Delivery]":
    """Return the deliveries of the messages that the calling batch syncer is handling, in their order.

    Raises:
        LifecycleError: No batch is being handled here.
    """
    try:
        return CURRENT_BATCH.get()
    except LookupError:
        raise LifecycleError("no batch is being handled here: call this from inside a batch syncer") from None


@contextmanager
def only_deliveries(positions: Sequence[int]) -> Iterator[None]:
    """Limit ``current_deliveries`` to these positions while the block runs: the messages that the handler receives."""
    deliveries = current_deliveries()
    token = CURRENT_BATCH.set([deliveries[position] for position in positions])
    try:
        yield
    finally:
        CURRENT_BATCH.reset(token)


def outcomes_of(result: object) -> "list[Any] | None":
    """Return the outcomes in the result of a batch syncer; None if all messages are done.

    Raises:
        RefusedError: The syncer refused the call.
        BrokenError: The result breaks the contract.
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
    """Return the failure of one message for its span. ``Postpone`` is not a failure."""
    match outcome:
        case RefusedError() | BrokenError():
            return RefusedBySyncer()
        case Postpone():
            return None
        case _:
            return outcome


def report_of(outcome: Outcome) -> SyncerResult | Interruption:
    """Return the result of one message's run."""
    match outcome:
        case None:
            return DONE
        case MessageInProgressError():
            # Another run of the message holds its inbox row. If this counted as a failure, the message could be
            # dead-lettered while the other run commits.
            return POSTPONED
        case RefusedError() | ConflictError():
            return REFUSED
        case BrokenError():
            return outcome.verdict
        case _:
            return interpret_error(outcome)


def _cause() -> tuple[str, str] | None:
    """Return the cause if the batch has one delivery. With several, the cause of an emitted message is unknown."""
    batch = CURRENT_BATCH.get(())
    return cause_named_by(batch[0]) if len(batch) == 1 else None


causation.add_source(_cause)
