"""Carries out what an executor has decided about a message. The only place in the engine that does."""

from collections.abc import Awaitable, Callable
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
from conquiet.runtime.lease import LeaseTable
from conquiet.runtime.message import Ownership, RuntimeMessage
from conquiet.runtime.outage import OutagePause


class Settler:
    """Settles messages of one engine.

    Args:
        executor: Stores messages that are retried, deferred or dead-lettered.
        acknowledge: Acknowledges a message soon, in a batch with others.
        release: Returns a message to the group, uncharged.
        table: Messages whose lease is kept.
        outage: Paused by a release because of an infrastructure fault.
        stop: Ends the engine with an error.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        acknowledge: Callable[[RuntimeMessage], None],
        release: Callable[[RuntimeMessage], Awaitable[object]],
        table: LeaseTable,
        outage: OutagePause,
        stop: Callable[[BaseException], None],
    ) -> None:
        self._executor = executor
        self.acknowledge = acknowledge
        self._release_to_group = release
        self._table = table
        self._outage = outage
        self._stop = stop

    async def settle(self, message: RuntimeMessage, settlement: Settlement) -> None:
        """Carry it out.

        Raises:
            QueueError: The server cannot be reached or refuses. The message stays pending.
        """
        match settlement:
            case Acknowledge() if message.ownership is Ownership.HELD:
                self.acknowledge(message)
            case Acknowledge() | Moved():
                self._table.release(message)
            case KeepPending():
                self.keep_pending(message, settlement)
            case RetryLater() | Defer() | DeadLetter():
                await self._store(message, settlement)
            case Release(failure):
                if isinstance(failure, InfrastructureError):
                    self._outage.record_fault(failure, started_at=message.started_at)
                await self._release(message)
            case Stop(failure):
                await self._release(message)
                self._stop(failure)
            case _:
                assert_never(settlement)

    def keep_pending(self, message: RuntimeMessage, settlement: KeepPending) -> None:
        """Stop extending the lease: the entry is claimed once it is stale. Needs no call to the server."""
        if settlement.failure is not None:
            self._table.note_survived(message)
        self._table.release(message)

    async def _store(self, message: RuntimeMessage, settlement: RetryLater | Defer | DeadLetter) -> None:
        try:
            if message.ownership is not Ownership.ACKNOWLEDGED:
                # A message that is known to be lost is stored as well: the script checks the owner on the server.
                with message.settling():
                    await self._executor.store(message, settlement)
                    message.mark_acknowledged()
        finally:
            self._table.release(message)

    async def _release(self, message: RuntimeMessage) -> None:
        if message.ownership is Ownership.HELD:
            await self._release_to_group(message)
        self._table.release(message)
