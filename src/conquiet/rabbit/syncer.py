"""What calling the syncer came to. SPEC(004 §4): a boolean, or the contract is broken."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

Syncer = Callable[[Any], bool] | Callable[[Any], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Done:
    """The syncer returned True."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The syncer returned False: worth one more attempt."""


@dataclass(frozen=True, slots=True)
class ContractBroken:
    """The syncer raised or returned something that is not a boolean: a permanent failure of the system.

    Attributes:
        reason: Built from type names only; an exception's text may quote the message.
        error: What was raised, if anything.
    """

    reason: str
    error: BaseException | None = field(default=None, repr=False)


Outcome = Done | Refused | ContractBroken

DONE: Final = Done()
REFUSED: Final = Refused()


def judge(result: object) -> Outcome:
    """Turn what the syncer returned into an outcome. Only the two booleans count: 1 and 0 are not booleans."""
    if result is True:
        return DONE
    if result is False:
        return REFUSED
    hint = ""
    if inspect.iscoroutine(result):
        result.close()  # nobody will await it, and Python would warn about that
        hint = "; declare the syncer with 'async def'"
    return ContractBroken(f"the syncer must return True or False, it returned a {type(result).__name__}{hint}")


def broken_by(error: BaseException, *, who: str = "the syncer") -> ContractBroken:
    """Turn what the syncer (or something on the way to it) raised into an outcome."""
    return ContractBroken(f"{who} raised {type(error).__name__}", error)
