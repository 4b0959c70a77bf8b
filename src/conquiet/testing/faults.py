"""Decide which bytes a fault proxy forwards. Pure: no sockets.

An armed fault is applied once, to the next chunk that matches it. Faults are checked in the order in which they were
armed.

    drop_request          request ──✗                      the server never sees it
    drop_reply            request ──▶ server ──reply──✗     the server did it, the client cannot know
    cut_reply             reply ──n bytes──✗               a frame broken in the middle
    stall_reply           request ──▶ server ──reply──║     held back until resume()
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from enum import Enum

_EVERYTHING = -1


class FaultKind(Enum):
    """The effect of an armed fault."""

    DROP_REQUEST = "drop_request"
    DROP_REPLY = "drop_reply"
    CUT_REPLY = "cut_reply"
    STALL_REPLY = "stall_reply"


@dataclass(frozen=True, slots=True)
class Fault:
    """One armed fault.

    Attributes:
        matching: The request must contain these bytes; None matches any request.
        after_bytes: For ``CUT_REPLY``: this many bytes of the reply still reach the client.
        on_any_reply: For ``CUT_REPLY``: the next reply bytes on any connection, requested or pushed.
    """

    kind: FaultKind
    matching: bytes | None = None
    after_bytes: int = 0
    on_any_reply: bool = False


@dataclass(frozen=True, slots=True)
class ChunkDecision:
    """The decision about one chunk: the part to forward, and whether to close or stall the connection after it."""

    forward: bytes
    close: bool = False
    stall: bool = False


@dataclass(slots=True)
class Conversation:
    """State of one connection that the decisions need."""

    request_tail: bytes = b""
    reply_budget: int = _EVERYTHING
    matched: Fault | None = None


class FaultPlan:
    """The faults armed on one proxy. Armed from any thread, read by the proxy's thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._armed: list[Fault] = []
        self._pending = 0
        self._done = 0

    @property
    def done(self) -> int:
        """Return the number of applied faults."""
        return self._done

    def arm(self, fault: Fault) -> None:
        """Apply the fault to the next chunk that matches, once."""
        with self._changed:
            self._armed.append(fault)
            self._pending += 1

    def disarm(self) -> None:
        """Remove the faults that have not been applied."""
        with self._changed:
            self._pending -= len(self._armed)
            self._armed.clear()
            self._changed.notify_all()

    def count_disconnect(self) -> None:
        """Count a connection that the test closed."""
        with self._changed:
            self._done += 1

    def wait(self, timeout_s: float) -> None:
        """Return when every armed fault has been applied.

        Raises:
            TimeoutError: A fault has not happened; the text names the faults that are still armed.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._pending:
                if not self._changed.wait(deadline - time.monotonic()):
                    waiting = ", ".join(map(str, self._armed)) or "a reply to a request that matched"
                    raise TimeoutError(f"not applied within {timeout_s:g} s: {waiting}")

    def on_request(self, conversation: Conversation, chunk: bytes) -> ChunkDecision:
        """Decide about bytes from the client."""
        with self._changed:
            fault = self._take(conversation, chunk)
            if fault is None:
                return ChunkDecision(chunk)
            if fault.kind is FaultKind.DROP_REQUEST:
                self._applied()
                return ChunkDecision(b"", close=True)
            if fault.kind is FaultKind.STALL_REPLY:
                self._applied()
                return ChunkDecision(chunk, stall=True)
            conversation.matched, conversation.reply_budget = fault, fault.after_bytes
            return ChunkDecision(chunk)

    def on_reply(self, conversation: Conversation, chunk: bytes) -> ChunkDecision:
        """Decide about bytes from the server."""
        with self._changed:
            if conversation.matched is None:
                fault = next((armed for armed in self._armed if armed.on_any_reply), None)
                if fault is None:
                    return ChunkDecision(chunk)
                self._armed.remove(fault)
                conversation.matched, conversation.reply_budget = fault, fault.after_bytes
            if len(chunk) < conversation.reply_budget:
                conversation.reply_budget -= len(chunk)
                return ChunkDecision(chunk)
            self._applied()
            conversation.matched = None
            return ChunkDecision(chunk[: conversation.reply_budget], close=True)

    def abandoned(self, conversation: Conversation) -> None:
        """Settle the fault of a connection that ended before the fault was applied."""
        with self._changed:
            if conversation.matched is None:
                return
            # A reply to drop is lost now in any case. A reply to cut in half may have been too short.
            self._applied(times=int(conversation.matched.kind is FaultKind.DROP_REPLY))
            conversation.matched = None

    def _take(self, conversation: Conversation, chunk: bytes) -> Fault | None:
        """Return the first armed fault that matches these request bytes."""
        seen = conversation.request_tail + chunk
        longest = max((len(armed.matching or b"") for armed in self._armed), default=0)
        for fault in self._armed:
            if fault.on_any_reply or conversation.matched is not None:
                continue
            # Only what reaches into this chunk counts: bytes that passed before the arming do not.
            if not fault.matching or fault.matching in seen[-(len(chunk) + len(fault.matching) - 1) :]:
                self._armed.remove(fault)
                conversation.request_tail = b""
                return fault
        # TCP may split the matching bytes over two chunks.
        conversation.request_tail = seen[-(longest - 1) :] if longest > 1 else b""
        return None

    def _applied(self, times: int = 1) -> None:
        self._pending -= 1
        self._done += times
        self._changed.notify_all()
