"""Gather items while the previous batch is being sent: one round trip for all items that arrived in the meantime.

    add ──▶ due ──▶ next iteration of the loop: a batch of all due items ──▶ flush(batch)
             ▲                                                                  │
             └──────────── requeue, if the sender wants to resend it ───────────┘

One flush runs at a time. While ``held`` is True nothing is flushed here: another sender takes the due items.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class MicroBatcher(Generic[T]):
    """Passes items to ``flush`` in batches. Belongs to one event loop.

    Args:
        flush: Sends one batch. An error that it raises ends this round, and ``drain`` raises it. The next item starts
            another round.
        limit: Maximum number of items of a batch. None means no limit.
        name: Name of the task, for a debugger.

    Attributes:
        held: Set it while another sender takes the due items.
    """

    def __init__(self, flush: Callable[[list[T]], Awaitable[None]], *, limit: int | None = None, name: str) -> None:
        self._flush = flush
        self._limit = limit
        self._name = name
        self._due: list[T] = []
        self._task: asyncio.Task[None] | None = None
        self.held = False

    def __len__(self) -> int:
        """Return the number of due items that are not in a batch."""
        return len(self._due)

    @property
    def is_flushing(self) -> bool:
        """True while a round is under way."""
        return self._task is not None and not self._task.done()

    def add(self, item: T) -> None:
        """Send this item in one batch with all others of this event loop iteration."""
        self._due.append(item)
        if not self.held and (self._task is None or self._task.done()):
            self.flush_soon()

    def requeue(self, items: list[T]) -> None:
        """Make items due again, ahead of all others."""
        self._due[:0] = items

    def take(self) -> list[T]:
        """Remove and return the due items, for another sender."""
        items, self._due = self._due, []
        return items

    def flush_soon(self) -> "asyncio.Task[None]":
        """Start a round unless one is under way. Return its task."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=self._name)
        return self._task

    async def drain(self) -> None:
        """Return when nothing is due and no round is under way. Raise an error of ``flush``."""
        while self._due or self.is_flushing:
            # Shielded: a cancelled caller must not cancel the round, which also holds items of others.
            await asyncio.shield(self.flush_soon())

    async def close(self) -> list[T]:
        """Cancel the round under way. Return the due items."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        return self.take()

    async def _run(self) -> None:
        while self._due:
            await asyncio.sleep(0)  # items added in this iteration of the loop join the batch
            if self.held:
                return
            batch, self._due = self._due[: self._limit], [] if self._limit is None else self._due[self._limit :]
            if batch:
                await self._flush(batch)
