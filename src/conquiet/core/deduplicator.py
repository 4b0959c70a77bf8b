"""The interface of an inbox, for packages that must not import ``transactional``."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

from conquiet.errors import ConfigurationError


class Deduplicator(Protocol):
    """Decides whether a message's handler runs: a ``transactional.Inbox``, or a ``LeaseCheck`` around one.

    It writes its record in the session's transaction, so that the record and the effect commit together.
    """

    def once(self, session: Any, msg: Any) -> AbstractContextManager[bool]:
        """Yield True if the handler must run in this transaction, False if its effect is already committed."""
        ...


def require_deduplicator(inbox: object, once: str = "once", message: str = "msg", *, hint: str = "") -> None:
    """Raise ``ConfigurationError`` unless ``inbox`` is an object with ``once(session, msg)``.

    Args:
        inbox: The object.
        once: Name of the method.
        message: Name of its second argument.
        hint: Appended to the text of the error.
    """
    if isinstance(inbox, type) or not callable(getattr(inbox, once, None)):
        raise ConfigurationError(f"inbox must be an Inbox(), or another object with {once}(session, {message}){hint}")
