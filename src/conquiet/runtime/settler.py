"""Carry out settlements. No other module of the engine does this.

Only a handler can end the delivery of its message in another way, before it returns: with ``ctx.ack()``.
"""

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
from conquiet.runtime.leases import Leases
from conquiet.runtime.message import Ownership, RuntimeMessage
from conquiet.runtime.parts import EngineParts


class Settler:
    """Settles messages of one engine.

    Args:
        parts: The parts that all parts of the engine share. The executor stores messages that are retried, deferred or
            dead-lettered. The outage pauses when a message is released because of an infrastructure fault.
        leases: Acknowledges messages, and releases them to the group.
    """

    def __init__(self, parts: EngineParts, leases: Leases) -> None:
        self._executor, self._table = parts.executor, parts.table
        self._outage, self._stop = parts.outage, parts.stop
        self._leases = leases

    async def settle(self, message: RuntimeMessage, settlement: Settlement) -> Settlement:
        """Carry out a settlement. Return the one carried out: ``Executor.store`` may return another one instead.

        Raises:
            QueueError: The server cannot be reached or returns an error. The message stays pending.
        """
        match settlement:
            case Acknowledge() if message.ownership is Ownership.HELD:
                self._leases.acknowledge_soon(message)
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
