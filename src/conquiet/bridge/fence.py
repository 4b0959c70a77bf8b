"""The fence: right before COMMIT, ask whether the message is still ours.

It spares the work of a run that has lost its lease, and says so. It is not what makes the effect
happen once: between its answer and the COMMIT another consumer can still claim the message. That
gap can be made small and not closed, because two servers are asked. The inbox has no such gap.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from conquiet.bridge.metrics import observe_lease_lost
from conquiet.errors import LeaseLostError
from conquiet.kernel.functions import refuse_awaitable, require_plain_function

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from conquiet.db.session import DbSession

logger = logging.getLogger(__name__)


class Once(Protocol):
    """What decides whether a message's handler runs: an ``Inbox``, or a ``Fence`` around one."""

    def once(self, session: "DbSession", msg: Any) -> "AbstractContextManager[bool]":
        """Give True if the handler is to run in this session's transaction."""
        ...


class Fence:
    """Rolls a transaction back if its message was lost before the COMMIT. Goes wherever an inbox goes.

    >>> consumer.run(handler=handle, engine=engine, inbox=Fence(consumer.extend, inbox))  # doctest: +SKIP

    Args:
        still_ours: Asked with the message, after the handler; False means lost. ``QueueConsumer.extend`` is one:
            a round trip to Redis, which also starts the lease anew.
        inbox: Decides about the first time. Without one, every delivery runs.
    """

    def __init__(self, still_ours: Callable[[Any], bool], inbox: Once | None = None) -> None:
        require_plain_function("still_ours", still_ours)
        self._still_ours = still_ours
        self._inbox = inbox

    @contextmanager
    def once(self, session: "DbSession", msg: Any) -> Iterator[bool]:
        """See ``Inbox.once``. Leaving the session raises ``LeaseLostError`` if the message is not ours any more."""
        if self._inbox is None:
            session.before_commit(lambda _: self._check(msg))
            yield True
            return
        with self._inbox.once(session, msg) as first_time:
            if first_time:  # otherwise there is nothing to keep out
                session.before_commit(lambda _: self._check(msg))
            yield first_time

    def _check(self, msg: Any) -> None:
        answer = self._still_ours(msg)
        refuse_awaitable("still_ours", answer)
        if answer:
            return
        source, message_id = str(getattr(msg, "stream", "")), str(getattr(msg, "id", ""))
        observe_lease_lost(source)
        logger.warning("lease lost before commit, rolled back", extra={"source": source, "message_id": message_id})
        raise LeaseLostError(
            "the message was claimed by another consumer or acknowledged while it was being handled; its transaction "
            "was rolled back. Raise claim_idle_ms, or extend the lease while the handler works",
            stream=source,
            group=getattr(msg, "group", None),
            message_id=message_id,
        )
