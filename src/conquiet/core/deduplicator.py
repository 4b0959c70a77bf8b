"""The interface of an inbox, for packages that must not import ``transactional``."""

from contextlib import AbstractContextManager
from typing import Any, Protocol


class Deduplicator(Protocol):
    """Decides whether a message's handler runs: a ``transactional.Inbox``, or a ``LeaseCheck`` around one.

    It writes its record in the session's transaction, so that the record and the effect commit together.
    """

    def once(self, session: Any, msg: Any) -> AbstractContextManager[bool]:
        """Yield True if the handler must run in this transaction, False if its effect is already committed."""
        ...
