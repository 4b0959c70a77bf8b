"""Which bytes a fault proxy lets through: pure decisions, no sockets.

A fault is armed once and spends itself on the next chunk it fits. Faults are looked at in the order in which they
were armed, so a test that arms two knows which comes first.

    drop_request          request ──✗                      the server never sees it
    drop_reply            request ──▶ server ──reply──✗     the server did it, the client cannot know
    cut_reply             reply ──n bytes──✗               a frame broken in the middle
    stall_reply           request ──▶ server ──reply──║     held back until the test lets it go
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from enum import Enum

_EVERYTHING = -1


class FaultKind(Enum):
    """What an armed fault does."""

    DROP_REQUEST = "drop_request"
    DROP_REPLY = "drop_reply"
    CUT_REPLY = "cut_reply"
    STALL_REPLY = "stall_reply"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, waiting for its chunk.

    Attributes:
        matching: The request has to contain these bytes; None takes any request.
        after_bytes: For ``CUT_REPLY``: so many bytes of the reply still reach the client.
        on_any_reply: For ``CUT_REPLY``: the next reply bytes on any connection, asked for or pushed.
    """

    kind: FaultKind
    matching: bytes | None = None
    after_bytes: int = 0
    on_any_reply: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one chunk: the part to pass on, and whether the connection ends or stands still after it."""

    forward: bytes
    close: bool = False
    stall: bool = False


@dataclass(slots=True)
class Conversation:
    """What the decisions have to remember about one connection."""

    request_tail: bytes = b""
    reply_budget: int = _EVERYTHING
    striking: Fault | None = None


class FaultPlan:
    """The faults armed on one proxy. Armed from any thread, asked by the proxy's own."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._armed: list[Fault] = []
        self._pending = 0
        self._done = 0

    @property
    def done(self) -> int:
        """How many faults have struck so far."""
        return self._done

    def arm(self, fault: Fault) -> None:
        """The next chunk that fits is hit, once."""
        with self._changed:
            self._armed.append(fault)
            self._pending += 1

    def disarm(self) -> None:
        """Forget the faults that have not found a chunk yet."""
        with self._changed:
            self._pending -= len(self._armed)
            self._armed.clear()
            self._changed.notify_all()

    def count_cut(self) -> None:
        """A connection was cut by hand: that is a fault too."""
        with self._changed:
            self._done += 1

    def wait(self, timeout_s: float) -> None:
        """Return when every armed fault has struck.

        Raises:
            TimeoutError: One has not; the text names those that still wait for a chunk.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._pending:
                if not self._changed.wait(deadline - time.monotonic()):
                    waiting = ", ".join(map(str, self._armed)) or "a reply to the request that was hit"
                    raise TimeoutError(f"not struck within {timeout_s:g} s: {waiting}")

    def on_request(self, talk: Conversation, chunk: bytes) -> Verdict:
        """Decide about bytes from the client."""
        with self._changed:
            fault = self._take(talk, chunk)
            if fault is None:
                return Verdict(chunk)
            if fault.kind is FaultKind.DROP_REQUEST:
                self._struck()
                return Verdict(b"", close=True)
            if fault.kind is FaultKind.STALL_REPLY:
                self._struck()
                return Verdict(chunk, stall=True)
            talk.striking, talk.reply_budget = fault, fault.after_bytes
            return Verdict(chunk)

    def on_reply(self, talk: Conversation, chunk: bytes) -> Verdict:
        """Decide about bytes from the server."""
        with self._changed:
            if talk.striking is None:
                fault = next((armed for armed in self._armed if armed.on_any_reply), None)
                if fault is None:
                    return Verdict(chunk)
                self._armed.remove(fault)
                talk.striking, talk.reply_budget = fault, fault.after_bytes
            if len(chunk) < talk.reply_budget:
                talk.reply_budget -= len(chunk)
                return Verdict(chunk)
            self._struck()
            talk.striking = None
            return Verdict(chunk[: talk.reply_budget], close=True)

    def abandoned(self, talk: Conversation) -> None:
        """The connection ended by itself before its fault could strike: nothing waits for it any more."""
        with self._changed:
            if talk.striking is None:
                return
            # A reply that was to be dropped is lost now in any case. One to be cut in half may have been too short.
            self._struck(times=int(talk.striking.kind is FaultKind.DROP_REPLY))
            talk.striking = None

    def _take(self, talk: Conversation, chunk: bytes) -> Fault | None:
        """The first armed fault that fits these request bytes."""
        seen = talk.request_tail + chunk
        longest = max((len(armed.matching or b"") for armed in self._armed), default=0)
        for fault in self._armed:
            if fault.on_any_reply or talk.striking is not None:
                continue
            # Only what reaches into this chunk counts: a word that passed before the arming is history.
            if not fault.matching or fault.matching in seen[-(len(chunk) + len(fault.matching) - 1) :]:
                self._armed.remove(fault)
                talk.request_tail = b""
                return fault
        # TCP cuts where it likes, so the word may be split over two chunks.
        talk.request_tail = seen[-(longest - 1) :] if longest > 1 else b""
        return None

    def _struck(self, times: int = 1) -> None:
        self._pending -= 1
        self._done += times
        self._changed.notify_all()
