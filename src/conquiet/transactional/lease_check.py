"""The lease check: right before COMMIT, check that this worker still owns the message.

It rolls back a run that has lost its lease, and reports that. It does not make the effect
happen once: between the check and the COMMIT another consumer can still claim the message. That
gap cannot be closed, because two servers are involved. The inbox has no such gap.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from conquiet.core import tracing
from conquiet.core.deduplicator import Deduplicator, require_deduplicator
from conquiet.core.functions import reject_awaitable, require_plain_function
from conquiet.core.log import FactLogger
from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError, LeaseLostError
from conquiet.metrics.registry import LEASE_CHECK_ROLLBACKS_TOTAL
from conquiet.metrics.safety import count

logger = FactLogger(__name__)


class LeaseCheck:
    """Rolls a transaction back if its message was lost before the COMMIT.

    Takes the place of the ``Inbox`` in ``QueueConsumer.run``, and in plain functions that handle single messages.

    >>> consumer.run(handler=handle, engine=engine, inbox=LeaseCheck(consumer.extend, inbox))  # doctest: +SKIP

    Args:
        is_owner: Called with the message, after the handler; False means lost. ``QueueConsumer.extend`` is one:
            a round trip to Redis, which also renews the lease.
        inbox: Decides whether the handler runs. Without one, every delivery runs.
    """

    def __init__(self, is_owner: Callable[[Any], bool], inbox: Deduplicator | None = None) -> None:
        require_plain_function("is_owner", is_owner)
        if inbox is not None:
            require_deduplicator(inbox)
        self._is_owner = is_owner
        self._inbox = inbox

    @property
    def inbox(self) -> Deduplicator | None:
        """The inbox that decides whether the handler runs."""
        return self._inbox

    @contextmanager
    def once(self, session: DbSession, msg: Any) -> Iterator[bool]:
        """Do what ``Inbox.once`` does. Leaving the session raises ``LeaseLostError`` if the lease was lost.

        Only for a ``DbSession``: other sessions have no step before their COMMIT.
        """
        if not isinstance(session, DbSession):
            raise ConfigurationError(
                "a LeaseCheck needs a DbSession, which runs the check right before COMMIT; got a "
                f"{type(session).__name__}"
            )
        with nullcontext(enter_result=True) if self._inbox is None else self._inbox.once(session, msg) as first_time:
            if first_time:  # otherwise there is nothing to protect
                session.before_commit(lambda _: self._check(msg))
            yield first_time

    def _check(self, msg: Any) -> None:
        is_owned = self._is_owner(msg)
        reject_awaitable("is_owner", is_owned)
        if is_owned:
            return
        source, message_id = str(getattr(msg, "stream", "")), str(getattr(msg, "id", ""))
        count(LEASE_CHECK_ROLLBACKS_TOTAL, source)
        tracing.note("lease.lost", value=True)
        logger.warning(
            "lease of message %(message_id)s lost before COMMIT: rolled back, its new owner runs it",
            source=source,
            message_id=message_id,
        )
        raise LeaseLostError(
            "the message was claimed by another consumer or acknowledged while it was being handled; its transaction "
            "was rolled back. Raise claim_idle_ms, or extend the lease while the handler works",
            stream=source,
            group=getattr(msg, "group", None),
            message_id=message_id,
        )
