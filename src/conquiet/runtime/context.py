"""What a handler gets besides its message: acknowledge it early, check and extend its lease."""

import asyncio
import time
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from conquiet.core.threads import wait_on_loop
from conquiet.errors import LeaseLostError
from conquiet.runtime.message import Ownership, RuntimeMessage

T = TypeVar("T")

_HELD = Ownership.HELD  # an access to a member of an enum class costs as much as a function call


class LeaseManager(Protocol):
    """The part of the engine that a context calls."""

    claim_idle_s: float
    group: str

    async def acknowledge(self, message: RuntimeMessage) -> None:
        """Acknowledge now and return when the server has confirmed it."""
        ...

    async def extend(self, message: RuntimeMessage) -> bool:
        """Extend the lease by ``claim_idle``; False, and an ``error`` event, if another consumer owns the entry."""
        ...


class MessageContext:
    """What an ``async def`` handler may do about its message."""

    __slots__ = ("_leases", "message")

    def __init__(self, message: RuntimeMessage, leases: LeaseManager) -> None:
        self.message = message
        self._leases = leases

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
        """How often the server has delivered it, this time included."""
        return self.message.delivery_count

    @property
    def acknowledged(self) -> bool:
        """True once it was acknowledged early."""
        return self.message.acknowledged

    @property
    def lease_lost(self) -> bool:
        """True once it is known that another consumer owns the message."""
        return self.message.lease_lost

    @property
    def lease_remaining_s(self) -> float:
        """Seconds for which the message is certainly ours if no further extension succeeds; 0 if none."""
        if self.message.lease_lost:
            return 0.0
        return max(0.0, self.message.leased_at + self._leases.claim_idle_s - time.monotonic())

    def check_lease(self) -> None:
        """Raise ``LeaseLostError`` unless the message is certainly still ours. Costs no round trip.

        Call it right before a commit. After a long pause of the process (a stopped container, a
        suspended machine) it raises even before the heartbeat has noticed. An inbox row in the same
        transaction is the stronger fence: it also holds in the instant after this check.
        """
        message = self.message
        # Nearly always; a batch asks for each of its messages.
        if message.ownership is _HELD and message.leased_at + self._leases.claim_idle_s > time.monotonic():
            return
        if self.lease_remaining_s <= 0.0 and not message.acknowledged:
            raise LeaseLostError(
                "the message may be running elsewhere by now: its lease was lost or not extended in time; "
                "roll back and leave it to its new owner",
                stream=self.message.stream,
                message_id=self.message.id,
            )

    async def ack(self) -> None:
        """Acknowledge before the handler has ended. A second call does nothing.

        From here on a crash loses the rest of the handler's work: that is what an early ack means.

        Raises:
            LeaseLostError: Another consumer owns the message, or the handler has ended.
        """
        if not self.message.acknowledged:
            self._reject_late()
            await self._leases.acknowledge(self.message)

    async def extend(self) -> None:
        """Ask the server now whether the message is ours, and keep it for another ``claim_idle``.

        The heartbeat does that by itself; this is for certainty at one moment. After ``ack()`` it does nothing.

        Raises:
            LeaseLostError: Another consumer owns it, or it was acknowledged elsewhere, or the handler has ended.
        """
        if self.message.acknowledged:
            return
        self._reject_late()
        if not await self._leases.extend(self.message):
            self.message.lose()
            self.check_lease()

    def settling(self) -> AbstractContextManager[None]:
        """Wrap ``with`` around a call that acknowledges the entry by other means, and ``mark_acknowledged()`` in it.

        The heartbeat has a thread of its own and may find the entry gone before the reply has arrived.
        """
        return self.message.settling()

    def mark_acknowledged(self) -> None:
        """Note that the entry was acknowledged by other means (a script of the application, for example)."""
        self.message.mark_acknowledged()

    def _reject_late(self) -> None:
        if self.message.lease_lost or self.message.has_ended:
            raise self._too_late()

    def _too_late(self) -> LeaseLostError:
        return LeaseLostError(
            "the message is not ours any more: its lease was lost, or its handler has ended",
            stream=self.message.stream,
            message_id=self.message.id,
        )


class SyncMessageContext(MessageContext):
    """The same for a plain function, which runs in a thread. Calls block until the server has replied."""

    __slots__ = ("_loop",)

    def __init__(self, message: RuntimeMessage, leases: LeaseManager, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(message, leases)
        self._loop = loop

    def ack(self) -> None:  # type: ignore[override]
        """See ``MessageContext.ack``."""
        self._wait(super().ack())

    def extend(self) -> None:  # type: ignore[override]
        """See ``MessageContext.extend``."""
        self._wait(super().extend())

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return wait_on_loop(self._loop, call, too_late=self._too_late)
