"""Interpret the result of a syncer: a boolean, or a broken contract. SPEC(004 §4).

See docs/decisions/0021.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from conquiet.errors import ConquietError, InfrastructureError

Syncer = Callable[[Any], bool] | Callable[[Any], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Done:
    """The syncer returned True."""

    reason: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The syncer returned False: the message may be tried again."""

    reason: ClassVar[str] = "refused"


@dataclass(frozen=True, slots=True)
class Rejected:
    """The syncer raised :class:`DeadLetterNow`: another attempt would fail in the same way.

    Attributes:
        reason: The text of the exception. It is logged and stored.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class ContractBroken:
    """The syncer raised or returned something that is not a boolean: a permanent failure of the system.

    Attributes:
        reason: Contains type names only, because an exception's text may quote the message.
        error: The exception, if one was raised.
    """

    reason: str
    error: BaseException | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The syncer raised ``InfrastructureError``: a server that it needs is unavailable; the message is not at fault.

    Attributes:
        failure: The exception.
    """

    failure: BaseException | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Postponed:
    """The syncer raised :class:`Postpone`."""


SyncerResult = Done | Refused | Rejected | ContractBroken
Interruption = Unavailable | Postponed
"""The run had no result. The delivery stays unsettled and runs again. No attempt is counted."""

DONE: Final = Done()
REFUSED: Final = Refused()
POSTPONED: Final = Postponed()


class Postpone(ConquietError):  # noqa: N818 - an instruction to the consumer, not an error
    """Raised by a syncer to run the message again after a pause. No attempt is counted; other messages continue.

    The consumer keeps the delivery unsettled and calls the syncer again after a pause, which grows from 0.2 s to 10 s.
    The message is never dead-lettered because of it. If the consumer stops meanwhile, the message returns to the queue.
    """


class DeadLetterNow(ConquietError):  # noqa: N818 - an instruction to the consumer, not an error
    """Raised by a syncer: dead-letter the message now, without a requeue.

    The text of the exception is stored as the reason, in logs and in the dead letter. It must not quote the message.
    """


def interpret_result(result: object) -> SyncerResult:
    """Interpret the return value of the syncer. Only True and False are valid; 1 and 0 are not."""
    if result is True:
        return DONE
    if result is False:
        return REFUSED
    hint = ""
    if inspect.iscoroutine(result):
        result.close()  # never awaited: Python would warn
        hint = "; await it in the syncer, declared with 'async def'"
    return ContractBroken(f"the syncer must return True or False, it returned a {type(result).__name__}{hint}")


def interpret_error(error: BaseException, *, who: str = "the syncer") -> Rejected | ContractBroken | Interruption:
    """Interpret an exception of the syncer, or of a step before it."""
    if isinstance(error, Postpone):
        return POSTPONED
    if isinstance(error, DeadLetterNow):
        return Rejected(str(error))
    if isinstance(error, InfrastructureError):
        return Unavailable(error)
    return ContractBroken(f"{who} raised {type(error).__name__}", error)
