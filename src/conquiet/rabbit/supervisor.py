"""Getting connected and staying so: bounded, jittered, counted, and never behind the caller's back.

The first connection is tried once at each node and then not again: a wrong address or a missing queue should be seen at
once, by whoever started the process. Afterwards a lost link is rebuilt as a whole (connection, channel, prefetch,
consumer), up to ``max_reconnects`` failures in a row. A link counts as good once something was settled on it, or when
it has lasted: a queue that kills every consumer at its first message cannot make us connect for ever without a pause,
and an idle consumer does not add up the losses of its whole life.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from conquiet.errors import QueueMissingError, RabbitConnectionError, RabbitError
from conquiet.kernel.backoff import Backoff
from conquiet.kernel.clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

_LASTING_S: Final = 60.0

S = TypeVar("S")


class Supervisor(Generic[S]):
    """Makes sessions one after the other.

    Args:
        connect: Makes one session; gets the number of the attempt, counted from 0.
        backoff: How long to wait after a failure.
        max_failures: Failures in a row that are borne.
        stop: Ends every wait, also one for an attempt that is under way.
        nodes: How many addresses the attempts go round.
        clock: How long a session has lasted.
    """

    def __init__(
        self,
        connect: Callable[[int], Awaitable[S]],
        *,
        backoff: Backoff,
        max_failures: int,
        stop: asyncio.Event,
        nodes: int = 1,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._connect = connect
        self._backoff = backoff
        self._max_failures = max_failures
        self._stop = stop
        self._nodes = nodes
        self._clock = clock
        # Longer than the longest pause: whoever loses every link so late does not connect in a hot circle.
        self._lasting_s = max(_LASTING_S, backoff.cap_s)
        self._attempts = 0
        self._failures = 0
        self._since = clock.monotonic()

    async def first(self) -> S | None:
        """Make the first session at the first node that lets us in, or raise why it cannot be; None: asked to stop."""
        for _ in range(self._nodes - 1):
            try:
                return await self._attempt()
            except RabbitConnectionError as error:
                logger.warning("node left out", extra={"attempt": self._attempts, "reason": _short(error)})
        return await self._attempt()

    async def next(self, *, made_progress: bool) -> S | None:
        """Make another session after one was lost; None when we are asked to stop.

        Raises:
            RabbitConnectionError: It failed too often in a row.
            QueueMissingError: It failed too often in a row, at last because the queue is not there.
        """
        lasted = self._clock.monotonic() - self._since > self._lasting_s
        self._failures = 1 if made_progress or lasted else self._failures + 1
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
        reason = None if last is None else _short(last)
        raise RabbitConnectionError(
            f"gave up after {self._failures} failures in a row to get back to RabbitMQ"
            + ("" if reason is None else f"; the last one: {reason}"),
            reason=reason,
            attempts=self._failures,
        ) from last

    async def _attempt(self) -> S | None:
        """Make one session; None when we were asked to stop before there was one."""
        number, self._attempts = self._attempts, self._attempts + 1
        session = await unless_stopped(self._stop, self._connect(number))
        self._since = self._clock.monotonic()
        return session

    async def _stopped_within(self, delay_s: float) -> bool:
        try:
            async with asyncio.timeout(delay_s):
                await self._stop.wait()
        except TimeoutError:
            return False
        return True


async def unless_stopped(stop: asyncio.Event, work: Awaitable[S]) -> S | None:
    """Wait for the work and return what came of it; None when the stop was first, and the work is broken off."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        broken_off = working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    return None if broken_off else working.result()


def _short(error: RabbitError) -> str:
    return error.reason or type(error).__name__
