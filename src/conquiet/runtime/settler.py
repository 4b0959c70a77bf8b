"""Carry out settlements. No other module of the engine does this.

Only a handler can end the delivery of its message in another way, before it returns: with ``ctx.ack()``, or with
``ctx.mark_acknowledged()`` after a script of the application has acknowledged the entry.
"""

from collections.abc import Callable
from typing import assert_never

from conquiet.core.settlement import (
    Acknowledge,
    DeadLetter,
    Defer,
    KeepPending,
    Moved,
    Release,
    RetryLater,
    Settlement,
    Stop,
)
from conquiet.errors import InfrastructureError
from conquiet.runtime.executor import Executor
from conquiet.runtime.lease_table import LeaseTable
from conquiet.runtime.leases import Leases
from conquiet.runtime.message import Ownership, RuntimeMessage
from conquiet.runtime.outage import OutagePause


class Settler:
    """Settles messages of one engine.

    Args:
        executor: Stores messages that are retried, deferred or dead-lettered.
        leases: Releases messages to the group.
        acknowledge: Acknowledges a message soon, in a batch with others.
        table: Messages under lease.
        outage: Starts its pause when a message is released because of an infrastructure fault.
        stop: Ends the engine with an error.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        leases: Leases,
        acknowledge: Callable[[RuntimeMessage], None],
        table: LeaseTable,
        outage: OutagePause,
        stop: Callable[[BaseException], None],
    ) -> None:
        self._executor = executor
        self._leases = leases
        self.acknowledge = acknowledge
        self._table = table
        self._outage = outage
        self._stop = stop

    async def settle(self, message: RuntimeMessage, settlement: Settlement) -> Settlement:
        """Carry out a settlement. Return the one carried out: ``Executor.store`` may return another one instead.

        Raises:
            QueueError: The server cannot be reached or returns an error. The message stays pending.
        """
        match settlement:
            case Acknowledge() if message.ownership is Ownership.HELD:
                self.acknowledge(message)
            case Acknowledge():
                self._table.release(message)
            case Moved():
                message.mark_acknowledged()
                self._table.release(message)
            case KeepPending(failure):
                self.keep_pending(message, failure)
            case RetryLater() | Defer() | DeadLetter():
                return await self._store(message, settlement)
            case Release(failure):
                if isinstance(failure, InfrastructureError):
                    self._outage.record_fault(failure, started_at=message.started_at)
                await self._release(message)
            case Stop(failure):
                await self._release(message)
                self._stop(failure)
            case _:
                assert_never(settlement)
        return settlement

    def keep_pending(self, message: RuntimeMessage, failure: BaseException | None = None) -> None:
        """Stop extending the lease, so that the entry is claimed once it is stale. Makes no call to the server.

        Args:
            message: The message.
            failure: Error of its handler, which shows that the message does not kill its process.
        """
        if failure is not None:
            self._table.note_survived(message)
        self._table.release(message)

    async def release(self, messages: list[RuntimeMessage]) -> int:
        """Release messages that were not started. Return how many the servers accepted."""
        return await self._leases.release(messages)

    async def _store(self, message: RuntimeMessage, settlement: RetryLater | Defer | DeadLetter) -> Settlement:
        instead: Settlement | None = None
        try:
            if message.ownership is not Ownership.ACKNOWLEDGED:
                # A message marked as lost is stored too: the script checks the owner on the server.
                with message.settling():
                    instead = await self._executor.store(message, settlement, self._leases)
                    if instead is None or isinstance(instead, Moved):
                        message.mark_acknowledged()
        finally:
            self._table.release(message)
        return settlement if instead is None else await self.settle(message, instead)

    async def _release(self, message: RuntimeMessage) -> None:
        if message.ownership is Ownership.HELD:
            await self._leases.release([message])
        self._table.release(message)
