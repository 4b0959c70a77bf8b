"""Send the changing block of a page as server-sent events, when a new rendering differs from the last one.

The interval depends on the cost: rendering uses at most 0.6 percent of a core for each viewer. The number of viewers is
limited; further pages are not updated.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import PlainTextResponse, Response, StreamingResponse

from conquiet.dashboard.servers import DashboardServerError
from conquiet.dashboard.views import Page, View

_SHARE: Final = 0.006
_LONGEST_S: Final = 10.0
_PING_S: Final = 15.0
_LIFE_S: Final = 60.0
"""Longest life of an event stream, because a stopping server waits for its connections. Browsers reconnect."""


class Viewers:
    """Counts the pages with an event stream."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.count = 0

    @property
    def is_full(self) -> bool:
        """True if no further page gets an event stream."""
        return self.count >= self._most


def live(page: Page, view: View) -> Response:
    """Return the stream of events of a page."""
    if view.parts.viewers.is_full:
        return PlainTextResponse("Too many pages are open. This one stays as it was loaded.", 503)
    return StreamingResponse(_events(page, view), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def _events(page: Page, view: View) -> AsyncIterator[str]:
    parts = view.parts
    parts.viewers.count += 1
    try:
        yield "retry: 2000\n\n"
        sent, sent_at, began = "", time.monotonic(), time.monotonic()
        while not parts.closing.is_set() and time.monotonic() - began < _LIFE_S:
            before = await _urgent(page, view)  # before the rendering, so that a change during it leads to another one
            cpu = time.thread_time()
            block = await parts.renderer.live_block(page, view)
            cost_s = time.thread_time() - cpu
            if block != sent:
                sent, sent_at = block, time.monotonic()
                yield "event: page\n" + "".join(f"data: {line}\n" for line in block.splitlines()) + "\n"
            elif time.monotonic() - sent_at > _PING_S:
                sent_at = time.monotonic()
                yield ": still here\n\n"
            pause_s = min(_LONGEST_S, max(page.interval_s, cost_s / _SHARE))
            until = time.monotonic() + pause_s
            while not parts.closing.is_set() and (left_s := until - time.monotonic()) > 0:
                if await _urgent(page, view) != before:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, page.interval_s)):
                        await parts.closing.wait()
    finally:
        parts.viewers.count -= 1


async def _urgent(page: Page, view: View) -> object:
    """Return the value that causes an immediate rendering when it changes; None for most pages."""
    try:
        return None if page.urgent is None else await page.urgent(view)
    except DashboardServerError as unavailable:
        return unavailable.server
