"""Rights of users: determined once per request, checked before each change.

A rule is an action, or an action and a pattern of streams: ``"replay"``, ``"replay:orders*"``. An action without a
rule is not allowed. A rule with a pattern does not cover objects that belong to no stream.
"""

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from conquiet.errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.requests import Request


class Action(StrEnum):
    """Actions that rules can allow. All except VIEW and REVEAL change something."""

    VIEW = "view"
    REVEAL = "reveal"
    REPLAY = "replay"
    DISCARD = "discard"
    EDIT = "edit"
    CANCEL = "cancel"
    RUN_NOW = "run-now"
    PAUSE = "pause"
    SCHEDULE = "schedule"
    UNPARK = "unpark"
    PEEK = "peek"


READING: Final = frozenset({Action.VIEW, Action.REVEAL})
READ_ONLY: Final = frozenset({"view"})
"""Rights of a visitor who may view and change nothing."""
EVERYTHING: Final = frozenset(action.value for action in Action)
"""All rights on all streams."""


@dataclass(frozen=True, slots=True)
class Access:
    """The rights of one user.

    >>> Access("ann", may={"view", "replay:orders*"}).allows(Action.REPLAY, "orders-eu")
    True

    Attributes:
        user: Name for the audit stream.
        may: Rules: an action, or ``action:pattern`` with a pattern of stream names as in a shell.
    """

    user: str
    may: Collection[str] = READ_ONLY

    def __post_init__(self) -> None:
        if isinstance(self.may, str):
            raise ConfigurationError("may must be a set of rules such as {'view', 'replay:orders*'}, not a text")
        for rule in self.may:
            action = rule.partition(":")[0]
            if action not in EVERYTHING:
                raise ConfigurationError(f"there is no action {action!r}; there are {', '.join(Action)}")

    def allows(self, action: Action, stream: str | None = None) -> bool:
        """Return whether a rule covers the action, on the stream if one is named."""
        for rule in self.may:
            name, colon, pattern = rule.partition(":")
            if name != action.value:
                continue
            if not colon or (stream is not None and fnmatchcase(stream, pattern)):
                return True
        return False

    def allows_some(self, action: Action) -> bool:
        """Return whether the action is allowed on some stream."""
        return any(rule.partition(":")[0] == action.value for rule in self.may)

    @property
    def can_change(self) -> bool:
        """True if some action that changes something is allowed."""
        return any(Action(rule.partition(":")[0]) not in READING for rule in self.may)


Authorize = Callable[["Request"], Awaitable[Access | None] | Access | None]
"""Return the rights of a request's user; None if the user may not view anything."""
