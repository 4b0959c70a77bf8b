"""The context that is passed to a handler: acknowledge early, check and extend the lease."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

import msgspec

from conquiet.core.threads import wait_on_loop
from conquiet.errors import LeaseLostError
from conquiet.runtime.message import Ownership, RuntimeMessage

T = TypeVar("T")

_HELD = Ownership.HELD  # an access to a member of an enum class costs as much as a function call


class LeaseManager(Protocol):
    """Lease operations of the engine, called by contexts."""

    claim_idle_s: float
    group: str

    async def acknowledge(self, message: RuntimeMessage) -> None:
        """Acknowledge now and return when the server has confirmed it."""
        ...

    async def extend(self, message: RuntimeMessage) -> bool:
        """Extend the lease to ``claim_idle_ms`` from now. False, with an ``error`` event, if it was lost."""
        ...


class MessageContext(msgspec.Struct, eq=False):
    """Operations on the current message for an ``async def`` handler.

    A msgspec struct, because one is built for every message, at half of the cost of a class.

    Attributes:
        message: The message.
    """

    message: RuntimeMessage
    _leases: LeaseManager

    @property
    def id(self) -> str:
        """Entry id of the message."""
        return self.message.id

    @property
    def stream(self) -> str:
        """Stream of the message."""
        return self.message.stream

    @property
    def group(self) -> str:
        """Consumer group of the engine that delivered the message."""
        return self._leases.group

    @property
    def delivery_count(self) -> int:
        """Number of deliveries so far, including this one."""
        return self.message.delivery_count

    @property
    def acknowledged(self) -> bool:
        """True after an early acknowledgement."""
        return self.message.acknowledged

    @property
    def lease_lost(self) -> bool:
        """True once the engine knows that another consumer owns the message."""
        return self.message.lease_lost

    @property
    def lease_remaining_s(self) -> float:
        """Seconds until another consumer may claim the message if no further extension succeeds, at least 0."""
        if self.message.lease_lost:
            return 0.0
        return max(0.0, self.message.leased_at + self._leases.claim_idle_s - time.monotonic())

    def check_lease(self) -> None:
        """Raise ``LeaseLostError`` unless this consumer certainly still owns the message. Costs no round trip.

        Call it right before a commit. After a long pause of the process (a stopped container, a
        suspended machine) it raises even before the heartbeat has noticed. An inbox row in the same
        transaction is the stronger guarantee: it also holds in the instant after this check.
        """
        if (error := lost_lease(self)) is not None:
            raise error

    async def ack(self) -> None:
        """Acknowledge before the handler has ended. A second call does nothing.

        A crash after this call loses the rest of the handler's work, because the message is not delivered again.

        Raises:
            LeaseLostError: Another consumer owns the message, or the handler has ended.
        """
        if not self.message.acknowledged:
            self._reject_late()
            await self._leases.acknowledge(self.message)

    async def extend(self) -> None:
        """Check on the server that this consumer owns the message and extend its lease to ``claim_idle_ms`` from now.

        The heartbeat extends leases automatically; call this to be certain at one moment. After ``ack()`` it does
        nothing.

        Raises:
            LeaseLostError: Another consumer owns it, or it was acknowledged elsewhere, or the handler has ended.
        """
        if self.message.acknowledged:
            return
        self._reject_late()
        if not await self._leases.extend(self.message):
            self.message.lose()
            self.check_lease()

    def _reject_late(self) -> None:
        if self.message.lease_lost or self.message.has_ended:
            raise self._too_late()

    def _too_late(self) -> LeaseLostError:
        return LeaseLostError(
            "the message is not ours any more: its lease was lost, or its handler has ended",
            stream=self.message.stream,
            message_id=self.message.id,
        )


def lost_lease(context: MessageContext) -> LeaseLostError | None:
    """Return an error unless this consumer certainly still owns the message."""
    message = context.message
    # Fast path: a batch checks each of its messages.
    if message.ownership is _HELD and message.leased_at + context._leases.claim_idle_s > time.monotonic():  # noqa: SLF001
        return None
    if message.acknowledged or context.lease_remaining_s > 0.0:
        return None
    return LeaseLostError(
        "the message may be running elsewhere by now: its lease was lost or not extended in time; "
        "roll back and leave it to its new owner",
        stream=message.stream,
        message_id=message.id,
    )


class SyncMessageContext(MessageContext, eq=False):
    """``MessageContext`` for a plain function, which runs in a thread. Calls block until the server has replied."""

    _loop: asyncio.AbstractEventLoop

    def ack(self) -> None:  # type: ignore[override]
        """See ``MessageContext.ack``."""
        self._wait(super().ack())

    def extend(self) -> None:  # type: ignore[override]
        """See ``MessageContext.extend``."""
        self._wait(super().extend())

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return wait_on_loop(self._loop, call, too_late=self._too_late)
