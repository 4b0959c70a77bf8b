"""Connect and reconnect, with backoff and a limit of consecutive failures.

The first connection is tried once at each node: a wrong address or a missing queue fails the start. Later a lost link
is replaced as a whole (connection, channel, prefetch, consumer), up to ``max_reconnects`` consecutive failures. The
count of failures is reset when a message was settled on the link, or when the link has lasted long enough. So a queue
that ends every consumer at its first message does not cause an endless loop of connections, and an idle consumer does
not add up the losses of several days.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from conquiet.core.backoff import Backoff
from conquiet.core.clock import SYSTEM_CLOCK, Clock
from conquiet.core.log import FactLogger
from conquiet.errors import QueueMissingError, RabbitConnectionError, RabbitError

logger = FactLogger(__name__)

_LASTING_S: Final = 60.0
# Consecutive attempts that find no queue: about 10 s with the default backoff, enough for a queue to be replaced.
_MAX_MISSING: Final = 6

S = TypeVar("S")


class ConnectionSupervisor(Generic[S]):
    """Creates sessions one after the other.

    Args:
        connect: Creates one session; receives the number of the attempt, counted from 0.
        backoff: Waiting times after failures.
        max_failures: Maximum consecutive failures.
        stop: Ends every wait, and cancels a running attempt.
        nodes: Number of addresses, used in turn.
        on_failure: Called with the error of each failed attempt to reconnect.
        clock: Measures how long a session has lasted.
    """

    def __init__(
        self,
        connect: Callable[[int], Awaitable[S]],
        *,
        backoff: Backoff,
        max_failures: int,
        stop: asyncio.Event,
        nodes: int = 1,
        on_failure: Callable[[RabbitError], None] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._connect = connect
        self._backoff = backoff
        self._max_failures = max_failures
        self._stop = stop
        self._nodes = nodes
        self._on_failure = on_failure
        self._clock = clock
        # At least as long as the longest pause, so that repeated losses cannot form a loop without pauses.
        self._lasting_s = max(_LASTING_S, backoff.cap_s)
        self._attempts = 0
        self._failures = 0
        self._since = clock.monotonic()

    async def first(self) -> S | None:
        """Return the first session, at the first node that accepts it; None after a stop. Raise if no node does."""
        for _ in range(self._nodes - 1):
            try:
                return await self._attempt()
            except RabbitConnectionError as error:
                logger.warning("node left out", attempt=self._attempts, reason=_short(error))
        return await self._attempt()

    async def next(self, *, made_progress: bool) -> S | None:
        """Return a new session after one was lost; None after a stop.

        Raises:
            RabbitConnectionError: Too many consecutive failures.
            QueueMissingError: The queue did not exist at six consecutive attempts, or at the last attempt.
        """
        lasted = self._clock.monotonic() - self._since > self._lasting_s
        self._failures = 1 if made_progress or lasted else self._failures + 1
        last: RabbitError | None = None
        missing = 0
        while self._failures <= self._max_failures and missing < _MAX_MISSING:
            pause = asyncio.sleep(self._backoff.delay_s(self._failures), result=True)
            if await unless_stopped(self._stop, pause) is None:
                return None
            try:
                return await self._attempt()
            except RabbitError as error:
                self._failures += 1
                last = error
                missing = missing + 1 if isinstance(error, QueueMissingError) else 0
                self._on_failure(error)
        if isinstance(last, QueueMissingError):
            raise last
        reason = None if last is None else _short(last)
        raise RabbitConnectionError(
            f"gave up after {self._failures} failures in a row to reconnect to RabbitMQ"
            + ("" if reason is None else f"; the last one: {reason}"),
            reason=reason,
            attempts=self._failures,
        ) from last

    async def _attempt(self) -> S | None:
        """Return one session; None if stopped first."""
        number, self._attempts = self._attempts, self._attempts + 1
        session = await unless_stopped(self._stop, self._connect(number))
        self._since = self._clock.monotonic()
        return session


async def unless_stopped(stop: asyncio.Event, work: Awaitable[S]) -> S | None:
    """Return the result of the work; None if stopped first, after cancelling the work."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        cancelled = working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    return None if cancelled else working.result()


def _short(error: RabbitError) -> str:
    return error.reason or type(error).__name__
