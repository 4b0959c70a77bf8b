"""Getting connected and staying so: bounded, jittered, counted, and never behind the caller's back.

The first connection is not retried: a wrong address or a missing queue should be seen at once, by whoever started the
process. Afterwards a lost link is rebuilt as a whole (connection, channel, prefetch, consumer), up to
``max_reconnects`` failures in a row. A link counts as good once something was settled on it, so that a queue which
kills every consumer at its first message cannot make us connect for ever without a pause.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from conquiet.errors import QueueMissingError, RabbitConnectionError, RabbitError
from conquiet.kernel.backoff import Backoff

logger = logging.getLogger(__name__)

S = TypeVar("S")


class Supervisor(Generic[S]):
    """Makes sessions one after the other.

    Args:
        connect: Makes one session; gets the number of the attempt, counted from 0.
        backoff: How long to wait after a failure.
        max_failures: Failures in a row that are borne.
        stop: Ends every wait.
    """

    def __init__(
        self,
        connect: Callable[[int], Awaitable[S]],
        *,
        backoff: Backoff,
        max_failures: int,
        stop: asyncio.Event,
    ) -> None:
        self._connect = connect
        self._backoff = backoff
        self._max_failures = max_failures
        self._stop = stop
        self._attempts = 0
        self._failures = 0

    async def first(self) -> S:
        """Make the first session, or raise why it cannot be."""
        return await self._attempt()

    async def next(self, *, made_progress: bool) -> S | None:
        """Make another session after one was lost; None when we are asked to stop.

        Raises:
            RabbitConnectionError: It failed too often in a row.
            QueueMissingError: It failed too often in a row, at last because the queue is not there.
        """
        self._failures = 1 if made_progress else self._failures + 1
        last: RabbitError | None = None
        while self._failures <= self._max_failures:
            if await self._stopped_within(self._backoff.delay_s(self._failures)):
                return None
            try:
                return await self._attempt()
            except RabbitError as error:
                self._failures += 1
                last = error
                logger.warning(
                    "reconnect failed",
                    extra={"failures": self._failures, "allowed": self._max_failures, "reason": _short(error)},
                )
        if isinstance(last, QueueMissingError):
            raise last
        raise RabbitConnectionError(
            f"gave up after {self._failures} failures in a row to get back to RabbitMQ", attempts=self._failures
        ) from last

    async def _attempt(self) -> S:
        number, self._attempts = self._attempts, self._attempts + 1
        return await self._connect(number)

    async def _stopped_within(self, delay_s: float) -> bool:
        try:
            async with asyncio.timeout(delay_s):
                await self._stop.wait()
        except TimeoutError:
            return False
        return True


def _short(error: RabbitError) -> str:
    return error.reason or type(error).__name__
