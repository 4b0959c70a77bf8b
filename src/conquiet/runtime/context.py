"""What a handler gets: the message, and what it may do about it."""

import asyncio
import time
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol, TypeVar

import msgspec

from conquiet.errors import LeaseLostError
from conquiet.kernel.threads import wait_on_loop

T = TypeVar("T")


class RuntimeMessage(msgspec.Struct, eq=False):
    """One delivery of one stream entry.

    A struct of msgspec's, because one is built for every message: at a tenth of the price of a class.

    Attributes:
        stream: Key of the stream.
        id: Entry id, ``milliseconds-sequence``.
        data: The decoded JSON object. Not part of ``repr()``: it may be personal data.
        raw: The bytes it was decoded from, for whoever stores it elsewhere: a handler may change ``data``.
        leased_at: On the monotonic clock, a moment at which the entry was certainly ours.
        delivery_count: How often the server has delivered the entry, this time and killed processes included.
        started_at: The same clock when its handler was called; 0 before that.
        lease_lost: Somebody else holds it now. Written by the heartbeat's thread.
        acknowledged: The handler acknowledged it early, or by means of its own.
        leaving: The server is being asked to let go of it: that it is not ours any more is no loss then.
        settled: Its handler is through: it holds no slot any more.
        succeeded: It is, and well.
    """

    stream: str
    id: str
    data: dict[str, Any]
    raw: bytes = b""
    leased_at: float = 0.0
    delivery_count: int = 1
    started_at: float = 0.0
    lease_lost: bool = False
    acknowledged: bool = False
    leaving: bool = False
    settled: bool = False
    succeeded: bool = False

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show what ``repr()`` shows, and no payload: a struct would give rich all of its fields."""
        return [("stream", self.stream), ("id", self.id), ("delivery_count", self.delivery_count)]

    def __repr__(self) -> str:
        return f"RuntimeMessage(stream={self.stream!r}, id={self.id!r}, delivery_count={self.delivery_count})"


class Leaving:
    """The time in which the server is asked to let go of a message. No loss is reported then."""

    __slots__ = ("_message",)

    def __init__(self, message: RuntimeMessage) -> None:
        self._message = message

    def __enter__(self) -> None:
        self._message.leaving = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._message.leaving = False


class Custody(Protocol):
    """The part of the engine that a context speaks to."""

    claim_idle_s: float

    async def acknowledge(self, message: RuntimeMessage) -> None:
        """Acknowledge now and return when the server has said so."""
        ...

    async def extend(self, message: RuntimeMessage) -> bool:
        """Make the message ours for another ``claim_idle``; False, and an ``error`` event, if it is in other hands."""
        ...


class _Lease:
    """What both kinds of contexts know without asking anybody."""

    __slots__ = ("_custody", "message")

    def __init__(self, message: RuntimeMessage, custody: Custody) -> None:
        self.message = message
        self._custody = custody

    @property
    def id(self) -> str:
        """Entry id of the message."""
        return self.message.id

    @property
    def stream(self) -> str:
        """Stream of the message."""
        return self.message.stream

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
        """True once it is known that somebody else holds the message."""
        return self.message.lease_lost

    @property
    def lease_remaining_s(self) -> float:
        """Seconds for which the message is certainly ours if no further extension succeeds; 0 if none."""
        if self.message.lease_lost:
            return 0.0
        return max(0.0, self.message.leased_at + self._custody.claim_idle_s - time.monotonic())

    def check_lease(self) -> None:
        """Raise ``LeaseLostError`` unless the message is certainly still ours. Costs no round trip.

        Call it right before a commit. After a long pause of the process (a stopped container, a
        suspended machine) it raises even before the heartbeat has found out. An inbox row in the same
        transaction is the stronger fence: it also holds in the instant after this check.
        """
        if self.lease_remaining_s <= 0.0 and not self.message.acknowledged:
            raise LeaseLostError(
                "the message may be running elsewhere by now: its lease was lost or not extended in time; "
                "roll back and leave it to its new holder",
                stream=self.message.stream,
                message_id=self.message.id,
            )

    def _refuse_late(self) -> None:
        if self.message.lease_lost or self.message.settled:
            raise self._too_late()

    def _too_late(self) -> LeaseLostError:
        return LeaseLostError(
            "the message is not ours any more: its lease was lost, or its handler has ended",
            stream=self.message.stream,
            message_id=self.message.id,
        )

    def leaving(self) -> "Leaving":
        """Wrap ``with`` around a call that acknowledges the entry by other means, and ``mark_acknowledged()`` in it.

        The heartbeat has a thread of its own and may find the entry gone before you have the answer.
        """
        return Leaving(self.message)

    def mark_acknowledged(self) -> None:
        """Tell the engine that the entry was acknowledged by other means (say, inside a script of yours)."""
        self.message.acknowledged = True


class MessageContext(_Lease):
    """What an ``async def`` handler may do about its message."""

    __slots__ = ()

    async def ack(self) -> None:
        """Acknowledge before the handler is through. A second call does nothing.

        From here on a crash loses the rest of the handler's work: that is what an early ack means.

        Raises:
            LeaseLostError: Somebody else holds the message, or the handler is over: it is not ours to acknowledge.
        """
        if not self.message.acknowledged:
            self._refuse_late()
            await self._custody.acknowledge(self.message)

    async def extend(self) -> None:
        """Ask the server now whether the message is ours, and keep it for another ``claim_idle``.

        The heartbeat does that by itself; this is for certainty at one moment. After ``ack()`` it does nothing.

        Raises:
            LeaseLostError: Somebody else holds it, or it was acknowledged elsewhere, or the handler is over.
        """
        if self.message.acknowledged:
            return
        self._refuse_late()
        if not await self._custody.extend(self.message):
            self.message.lease_lost = True
            self.check_lease()


class SyncMessageContext(_Lease):
    """The same for a plain function, which runs in a thread. Calls block until the server has answered."""

    __slots__ = ("_loop",)

    def __init__(self, message: RuntimeMessage, custody: Custody, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(message, custody)
        self._loop = loop

    def ack(self) -> None:
        """See ``MessageContext.ack``."""
        if not self.message.acknowledged:
            self._refuse_late()
            self._on_loop(self._custody.acknowledge(self.message))

    def extend(self) -> None:
        """See ``MessageContext.extend``."""
        if self.message.acknowledged:
            return
        self._refuse_late()
        if not self._on_loop(self._custody.extend(self.message)):
            self.message.lease_lost = True
            self.check_lease()

    def _on_loop(self, call: Coroutine[Any, Any, T]) -> T:
        return wait_on_loop(self._loop, call, too_late=self._too_late)
