"""Replay: take messages out of a dead-letter queue and put them back to where they failed.

Each message is published to its source queue, confirmed, and only then acknowledged in the dead-letter queue. A crash
in between leaves it in both: twice is the preferred loss, never is not.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from conquiet.errors import ConfigurationError, RabbitError
from conquiet.kernel.clock import SYSTEM_CLOCK, Clock
from conquiet.kernel.validation import require_positive, require_text
from conquiet.rabbit.address import Address, as_urls
from conquiet.rabbit.connection import Fetched, Link
from conquiet.rabbit.intake import X_DEATH, X_DELIVERY_COUNT
from conquiet.rabbit.properties import renewed_properties
from conquiet.rabbit.publisher import Encoded, Publisher

# What the broker wrote about the earlier life. Kept, it would make the retry limit drop the message at once. And to
# whom else it went: they have it.
_HISTORY: Final = (
    "CC",
    "BCC",
    X_DEATH,
    X_DELIVERY_COUNT,
    *(f"x-{which}-death-{what}" for which in ("first", "last") for what in ("reason", "queue", "exchange")),
)


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a replay ended.

    Attributes:
        replayed: Back in their source queues.
        skipped: Left where they were, because they do not say where they came from.
    """

    replayed: int
    skipped: int


def source_queue(headers: object) -> str | None:
    """Return the queue in which a message died last, or None when it does not say."""
    deaths = headers.get(X_DEATH) if isinstance(headers, Mapping) else None
    newest = deaths[0] if isinstance(deaths, list) and deaths else None
    name = newest.get("queue") if isinstance(newest, Mapping) else None
    return name if isinstance(name, str) and name else None


class DeadLetters:
    """The dead-letter queues of one broker.

    Args:
        url: As for ``RabbitConsumer``.
        timeout_s: Longest wait for each answer of the broker.
        ssl_context: For ``amqps``.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        timeout_s: float = 30.0,
        ssl_context: Any = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._urls = as_urls(url)
        self._ssl_context = ssl_context
        self._timeout_s = timeout_s
        self._clock = clock
        self._address = Address(self._urls, ssl_context=ssl_context, timeout_s=timeout_s, name="conquiet.replay")

    async def replay(
        self,
        dead_letter_queue: str,
        *,
        to: str | None = None,
        limit: int | None = None,
        per_second: float | None = None,
        progress: Callable[[int, int], None] | None = None,
        chosen: Callable[[Fetched], bool] | None = None,
    ) -> Replayed:
        """Put the messages of a dead-letter queue back.

        Only as many as were there at the start: what fails again and comes back is left for another time.

        What is not put back (not ``chosen``, or without a source) was taken all the same. A quorum queue counts that,
        up to RabbitMQ 4.2 at least, and drops what was handed back more often than its delivery limit.

        Args:
            dead_letter_queue: Where they are.
            to: Where they go; None reads it from each message's ``x-death``.
            limit: At most so many.
            per_second: No faster than this.
            progress: Called after each message with (done, expected).
            chosen: Only those for which it says yes; the others stay where they are. None is all.

        Raises:
            QueueMissingError: The dead-letter queue is not there.
            PublishError: A message could not be put back; it is still in the dead-letter queue.
        """
        require_text("dead_letter_queue", dead_letter_queue)
        if limit is not None:
            require_positive("limit", limit)
        pace = _Pace(per_second, self._clock)
        link = await Link.open(self._address)
        publisher = Publisher(self._urls, timeout_s=self._timeout_s, ssl_context=self._ssl_context)
        taken = replayed = skipped = 0
        kept: list[int] = []
        try:
            depth = await link.depth(dead_letter_queue)
            expected = depth if limit is None else min(depth, limit)
            while (
                taken < depth
                and replayed + skipped < expected
                and (message := await link.fetch(dead_letter_queue)) is not None
            ):
                taken += 1
                kept.append(message.tag)  # not handed back until the end: it would be the next one we get
                if chosen is not None and not chosen(message):
                    continue
                target = to or source_queue(message.headers)
                if target is None:
                    skipped += 1
                else:
                    await pace.wait()
                    await publisher.send_encoded(_renewed(message, target))
                    if not link.ack(singles=(message.tag,)):
                        raise RabbitError(
                            "the connection was lost during a replay; the last message may be in both queues",
                            queue=dead_letter_queue,
                        )
                    kept.pop()
                    replayed += 1
                if progress is not None:
                    progress(replayed + skipped, expected)
        finally:
            await publisher.close()
            for tag in kept:
                link.hand_back(tag)  # the end of the link would do it too, and is counted by newer brokers
            await link.close()
        return Replayed(replayed, skipped)


class _Pace:
    """Spaces calls evenly."""

    def __init__(self, per_second: float | None, clock: Clock) -> None:
        if per_second is not None and not per_second > 0:
            raise ConfigurationError(f"per_second must be more than 0, got {per_second}")
        self._gap_s = 0.0 if per_second is None else 1.0 / per_second
        self._clock = clock
        self._next = clock.monotonic()

    async def wait(self) -> None:
        now = self._clock.monotonic()
        if self._next > now:
            await asyncio.sleep(self._next - now)
        self._next = max(now, self._next) + self._gap_s


def _renewed(message: Fetched, target: str) -> Encoded:
    return Encoded("", target, message.body, renewed_properties(message.properties, _HISTORY))
