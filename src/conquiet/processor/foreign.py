"""Entries that are no messages, at the beginning: is this stream one of a processor at all?

    first message of a processor seen ───────────▶ the stream is ours: what is held is dead-lettered, and all later ones
    no more entries for QUIET_S ─────────────────▶ held entries are dead-lettered, and the question stays open
    ``foreign_limit`` entries, and no message ───▶ look at both ends of the stream; a message there: the stream is ours
                                                   none there either: stop, held entries stay pending

Without this, a processor with a mistyped stream name would move all of another application's entries to dead letters
that cannot be replayed. A held entry occupies no slot of the engine: it is pending for this consumer and nothing else.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.errors import ConquietError, MalformedMessageError

logger = FactLogger(__name__)

QUIET_S = 2.0

DeadLetterLater = Callable[[], Awaitable[object] | None]
"""Dead-letters one entry, or begins to."""


class ForeignGuard:
    """Decides for each stream whether entries that are no messages may be dead-lettered.

    Args:
        limit: So many of them at the beginning end the processor; None never does.
        is_ours: Returns True if the stream, at either end, has a message of a processor.
        stop: Called once with the error that ends the processor.

    Attributes:
        ours: Streams that are known to be a processor's.
    """

    def __init__(
        self, limit: int | None, is_ours: Callable[[str], Awaitable[bool]], stop: Callable[[Exception], None]
    ) -> None:
        self._limit = limit
        self._is_ours = is_ours
        self._stop = stop
        self.ours: set[str] = set()
        self._seen: dict[str, set[str]] = {}
        self._held: dict[str, dict[str, DeadLetterLater]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()

    def accept(self, stream: str) -> None:
        """Note that a message was read: the stream is ours."""
        if stream not in self.ours:
            self.ours.add(stream)
            self._release(stream)

    def must_hold(self, stream: str, entry_id: str, dead_letter: DeadLetterLater) -> bool:
        """Return False if the entry is to be dead-lettered now; if True, ``dead_letter`` is called later or never."""
        if self._stopped:
            return True
        if self._limit is None or stream in self.ours:
            return False
        seen = self._seen.setdefault(stream, set())
        self._held.setdefault(stream, {})[entry_id] = dead_letter
        if stream in self._timers:
            self._timers[stream].cancel()
        is_new = entry_id not in seen
        seen.add(entry_id)
        if len(seen) < self._limit:
            self._timers[stream] = asyncio.get_running_loop().call_later(QUIET_S, self._release, stream)
        elif is_new and len(seen) == self._limit:
            self._begin(self._judge(stream, entry_id))
        return True

    async def finish(self) -> None:
        """Return when nothing is under way. What is held stays pending."""
        for timer in self._timers.values():
            timer.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _judge(self, stream: str, entry_id: str) -> None:
        try:
            ours = await self._is_ours(stream)
        except ConquietError:
            ours = False  # not known, and nothing is lost by stopping
        if ours:
            self.accept(stream)
        elif stream not in self.ours and not self._stopped:
            self._stopped = True
            self._stop(
                MalformedMessageError(
                    f"the first {self._limit} entries read from stream {printable(stream)!r} are no messages of a "
                    'processor: those have one field "data" with {"v": 1, "event": …}. Check the name of the stream. '
                    "The entries stay pending. foreign_limit=None in ProcessorSettings dead-letters them instead",
                    stream=stream,
                    message_id=entry_id,
                    reason="its first entries are all foreign",
                )
            )

    def _release(self, stream: str) -> None:
        entries = self._held.pop(stream, {})
        if self._stopped:
            return
        for entry_id, dead_letter in entries.items():
            self._begin(self._run(stream, entry_id, dead_letter))

    async def _run(self, stream: str, entry_id: str, dead_letter: DeadLetterLater) -> None:
        try:
            if (rest := dead_letter()) is not None:
                await rest
        except Exception as error:  # noqa: BLE001 - whatever it is, the entry is pending and is claimed again
            text = "foreign entry not dead-lettered: it stays pending"
            logger.failure(logging.WARNING, text, error, stream=stream, message_id=entry_id)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="conquiet-foreign")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
