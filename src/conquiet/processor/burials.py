"""Burying entries that are no message. The engine tells of each once; here it is tried until it is done.

A burial that the server refuses (no memory left, a key of another type) is tried again with a later look of
the mover, at most once a second. What is not buried when we stop stays pending, and is told of anew to
whoever claims it.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from conquiet.kernel.redaction import printable

logger = logging.getLogger(__name__)

Bury = Callable[[str, str, str], Awaitable[None]]
"""Takes stream, entry id and the reason."""

_REMEMBERED = 10_000
"""As many as the engine remembers having told of: one that is forgotten here will be told of again."""

_AT_ONCE = 100
_PAUSE_S = 1.0


class Burials:
    """Those under way and those that did not succeed yet.

    Args:
        bury: Carries one out.
    """

    def __init__(self, bury: Bury) -> None:
        self._bury = bury
        self._failed: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tried_at = time.monotonic()

    def begin(self, stream: str, entry_id: str, reason: str) -> None:
        """Bury an entry, in a task of its own."""
        task = asyncio.create_task(self._try(stream, entry_id, reason), name="conquiet-malformed")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def try_again(self) -> None:
        """Begin anew with some of those that failed, unless that was a moment ago."""
        if not self._failed or self._tasks or time.monotonic() - self._tried_at < _PAUSE_S:
            return
        self._tried_at = time.monotonic()
        for _ in range(min(_AT_ONCE, len(self._failed))):
            (stream, entry_id), reason = self._failed.popitem(last=False)
            self.begin(stream, entry_id, reason)

    async def finish(self) -> None:
        """Return when none is under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _try(self, stream: str, entry_id: str, reason: str) -> None:
        try:
            await self._bury(stream, entry_id, reason)
        except Exception as error:  # noqa: BLE001 - whatever it is, the entry is still there
            self._failed[stream, entry_id] = reason
            if len(self._failed) > _REMEMBERED:
                self._failed.popitem(last=False)
            logger.warning(
                "malformed entry not buried: it is tried again",
                extra={"stream": printable(stream), "message_id": entry_id, "error": type(error).__name__},
            )
