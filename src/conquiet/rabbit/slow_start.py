"""Start a link slowly, so that a message that kills its process affects few other messages.

When a process dies, the broker marks its whole prefetch window as redelivered, and a quorum queue counts a delivery for
each message in it toward the delivery limit. So a link to a non-empty queue begins with a prefetch of 1:

- A message that was redelivered twice or more (``x-delivery-count``) is a suspect. It runs while no other message is
  prefetched, so that only the message that kills is counted.
- At the first other message the prefetch is widened. If that message was delivered before, the link gathers deliveries
  for a short time. Then it runs new messages first, and after them the redelivered ones in random order: first one,
  then two together, then four. A classic queue does not count, and always delivers the killer at the same position.
  With another order at each start, and few messages running together, the other messages are processed.

A prefetch applies to consumers that begin after it was set. So widening cancels the first consumer and begins another
one. The message that caused the widening starts only when the broker has confirmed the cancellation. Until then it is
unsettled, and the first consumer's window is full. If it were settled earlier, the broker could deliver to a consumer
that is being cancelled, and a quorum queue (RabbitMQ 3.10) requeues such a delivery and counts it.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

from conquiet.errors import RabbitError
from conquiet.rabbit.connection import Link
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.frames import Arrival

_SUSPECT_FROM: Final = 2  # an ordinary stop or a lost connection explains one redelivery
_GATHER_S: Final = 0.05
NARROW: Final = "+"
"""Suffix of the first consumer's tag: if both consumers had the same tag, a quorum queue would count twice."""


def is_suspect(delivery: Delivery) -> bool:
    """Return whether the message was redelivered more often than an ordinary restart explains."""
    return (delivery.facts.delivery_count or 0) >= _SUSPECT_FROM


class SlowStart:
    """The slow start of one link. Used only in the event loop's thread.

    Args:
        link: The link.
        submit: Passes deliveries to the dispatcher.
        queue: The queue to consume.
        tag: The consumer tag.
        window: The full prefetch window.
        depth: Number of messages in the queue. An empty queue needs no slow start.
    """

    def __init__(
        self,
        link: Link,
        submit: Callable[[list[Delivery]], None],
        *,
        queue: str,
        tag: str,
        window: int,
        depth: int,
        shuffle: Callable[[list[Delivery]], None] = random.shuffle,
    ) -> None:
        self._link = link
        self._submit = submit
        self._queue = queue
        self._tag = tag
        self._window = window
        self._shuffle = shuffle
        self._is_over = depth == 0 or window == 1
        self._gathered: list[Delivery] | None = None
        self._task: asyncio.Task[None] | None = None
        self._again: list[Delivery] = []
        self._batch = 1
        self._running: set[Delivery] = set()

    async def consume(self, accept: Callable[[list[Arrival]], list[Delivery]]) -> None:
        """Begin the first consumer of the link. ``accept`` converts arrivals to deliveries."""
        await self._link.consume(
            self._queue,
            tag=self._tag if self._is_over else f"{self._tag}{NARROW}",
            prefetch=self._window if self._is_over else 1,
            on_arrivals=lambda arrivals: self.received(accept(arrivals)),
        )

    def received(self, deliveries: list[Delivery]) -> None:
        """Accept deliveries from the broker."""
        if self._gathered is not None:
            self._gathered += deliveries
        elif self._is_over or all(map(is_suspect, deliveries)):
            self._submit(deliveries)
        else:
            self._is_over = True
            self._gathered = list(deliveries)
            self._task = asyncio.get_running_loop().create_task(self._go_wide())

    def finished(self, delivery: Delivery) -> None:
        """Record the end of a run. After the last run of a batch, start the next batch, twice as large."""
        if delivery in self._running:
            self._running.discard(delivery)
            if not self._running:
                self._batch *= 2
                self._start_batch()

    async def end(self) -> None:
        """Submit the gathered deliveries, and end the task that widens the window."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        self._batch = len(self._gathered or ()) + len(self._again) + 1  # no message starts, or the link is lost
        self._release()
        self._start_batch()

    async def _go_wide(self) -> None:
        try:
            await self._link.cancel()
            if not any(delivery.redelivered for delivery in self._gathered or ()):
                self._release()
            await self._link.widen(self._queue, tag=self._tag, prefetch=self._window)
            if self._gathered is not None:
                await asyncio.sleep(_GATHER_S)
        except RabbitError as error:
            # Without a reply, the broker may have no consumer for this link, and would never deliver on it again.
            self._link.mark_lost(error)
        self._release()

    def _release(self) -> None:
        gathered, self._gathered = self._gathered, None
        if gathered:
            self._again = [delivery for delivery in gathered if delivery.redelivered]
            self._shuffle(self._again)
            self._submit([delivery for delivery in gathered if not delivery.redelivered])
            self._start_batch()

    def _start_batch(self) -> None:
        batch, self._again = self._again[: self._batch], self._again[self._batch :]
        self._running.update(batch)
        self._submit(batch)
