"""Replay: take messages out of a dead-letter queue and put them back to where they failed.

Each message is published to its source queue, confirmed, and only then acknowledged in the dead-letter queue. A crash
in between leaves it in both: twice is the preferred loss, never is not.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from conquiet.errors import ConfigurationError, RabbitError
from conquiet.kernel.clock import SYSTEM_CLOCK, Clock
from conquiet.kernel.validation import require_positive
from conquiet.rabbit.address import Address, as_urls, require_name
from conquiet.rabbit.confirms import Encoded
from conquiet.rabbit.connection import Fetched, Link
from conquiet.rabbit.counting import counts_hand_backs, nacks_are_free
from conquiet.rabbit.detours import PREFIX, Detours
from conquiet.rabbit.intake import X_ACQUIRED_COUNT, X_DEATH, X_DELIVERY_COUNT, delivery_count
from conquiet.rabbit.properties import renewed_properties
from conquiet.rabbit.publisher import Publisher

logger = logging.getLogger(__name__)

# What the broker wrote about the earlier life. Kept, it would make the retry limit drop the message at once. And to
# whom else it went: they have it.
_HISTORY: Final = (
    "CC",
    "BCC",
    X_DEATH,
    X_DELIVERY_COUNT,
    X_ACQUIRED_COUNT,
    *(f"x-{which}-death-{what}" for which in ("first", "last") for what in ("reason", "queue", "exchange")),
)

_LONGEST_NAME: Final = 255  # anybody may have written the header
_ALLOW: Final = "if it has no limit, or one that is far away, allow it with count_a_delivery=True"


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a replay ended.

    Attributes:
        replayed: Back in their source queues.
        skipped: Left where they were, because they do not say where they came from.
        rekeyed: How many of those replayed have their queue's name as routing key and not the one they were published
            with, because the user may not make an exchange. If their queue dead-letters by the original key, they are
            discarded when they fail again.
    """

    replayed: int
    skipped: int
    rekeyed: int = 0


def source_queue(headers: object) -> str | None:
    """Return the queue in which a message died last, or None when it does not say."""
    name = _newest_death(headers).get("queue")
    return name if isinstance(name, str) and name and len(name.encode()) <= _LONGEST_NAME else None


def original_key(headers: object) -> str | None:
    """Return the routing key with which a message was in the queue it died in, or None when it does not say."""
    keys = _newest_death(headers).get("routing-keys")
    key = keys[0] if isinstance(keys, list) and keys else None
    return key if isinstance(key, str) and len(key.encode()) <= _LONGEST_NAME else None


def _newest_death(headers: object) -> Mapping[Any, Any]:
    deaths = headers.get(X_DEATH) if isinstance(headers, Mapping) else None
    newest = deaths[0] if isinstance(deaths, list) and deaths else None
    return newest if isinstance(newest, Mapping) else {}


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
        count_a_delivery: bool = False,
    ) -> Replayed:
        """Put the messages of a dead-letter queue back.

        Each is put back under the routing key it was published with, and into no queue but its own: a copy for others
        (``CC``) is not made again. Where the key is not the queue's name that takes an exchange, made for the time of
        the replay (``conquiet.replay.*``); a user who may not make it is warned, see :attr:`Replayed.rekeyed`. What is
        sent elsewhere (``to``) has that queue's name as its key.

        Only as many as were there at the start: what fails again and comes back is left for another time.

        What is not put back (not ``chosen``, or without a source) was taken all the same. A quorum queue counts that
        before RabbitMQ 4.3, and drops what was handed back more often than its delivery limit, which AMQP does not
        tell. So a choice among the messages of a queue that may count is refused before any is taken, and a replay
        stops at a message without a source that was handed back before, unless ``count_a_delivery`` allows it.

        Args:
            dead_letter_queue: Where they are.
            to: Where they go; None reads it from each message's ``x-death``.
            limit: At most so many.
            per_second: No faster than this.
            progress: Called after each message with (done, expected).
            chosen: Only those for which it says yes; the others stay where they are. None is all.
            count_a_delivery: Hand back also where it is counted: each time brings a message nearer to its end.

        Raises:
            ConfigurationError: Messages would be handed back to a queue that counts it.
            QueueMissingError: The dead-letter queue is not there.
            PublishError: A message could not be put back; it is still in the dead-letter queue.
        """
        _check_order(dead_letter_queue, to, limit, progress, chosen)
        pace = _Pace(per_second, self._clock)
        link = await Link.open(self._address)
        publisher = Publisher(self._urls, timeout_s=self._timeout_s, ssl_context=self._ssl_context)
        way_back = _WayBack(publisher, Detours(self._address))
        taken = replayed = skipped = 0
        kept: list[int] = []
        async with AsyncExitStack() as ends:  # each of them also when we are cancelled in another: last comes first
            ends.push_async_callback(way_back.close)
            ends.push_async_callback(link.close)
            ends.callback(_hand_back, link, kept)
            ends.push_async_callback(publisher.close)
            depth = await link.depth(dead_letter_queue)
            if chosen is not None and depth and not count_a_delivery:
                await _refuse_to_count(link, dead_letter_queue)
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
                    if delivery_count(message.headers) and not (count_a_delivery or nacks_are_free(link)):
                        raise ConfigurationError(
                            f"stopped at a message of {dead_letter_queue} that says no source and was handed back "
                            f"before: its queue counts that and may drop it; name a queue (to=), or {_ALLOW}"
                        )
                else:
                    await pace.wait()
                    await way_back.send(message, target)
                    if not link.ack(singles=(message.tag,)):
                        raise RabbitError(
                            "the connection was lost during a replay; the last message may be in both queues",
                            queue=dead_letter_queue,
                        )
                    kept.pop()
                    replayed += 1
                if progress is not None:
                    progress(replayed + skipped, expected)
        return Replayed(replayed, skipped, way_back.rekeyed)


def _check_order(queue: object, to: object, limit: object, *functions: object) -> None:
    """Refuse what would fail with a message in hand."""
    require_name("dead_letter_queue", queue)
    if to is not None:
        require_name("to", to)
    if limit is not None:
        require_positive("limit", limit)
    if any(function is not None and not callable(function) for function in functions):
        raise ConfigurationError("progress and chosen must be functions")


def _hand_back(link: Link, tags: list[int]) -> None:
    for tag in tags:
        link.hand_back(tag)  # the end of the link would do it too, and is counted by newer brokers


async def _refuse_to_count(link: Link, queue: str) -> None:
    if await counts_hand_backs(link, queue):
        raise ConfigurationError(
            f"nothing was taken from {queue}: what is not chosen would be handed back, and a quorum queue counts "
            f"that and drops a message beyond its delivery limit; {_ALLOW}"
        )


class _Pace:
    """Spaces calls evenly."""

    def __init__(self, per_second: float | None, clock: Clock) -> None:
        if per_second is not None and (type(per_second) not in {int, float} or not per_second > 0):
            raise ConfigurationError("per_second must be a number above 0")
        self._gap_s = 0.0 if per_second is None else 1.0 / per_second
        self._clock = clock
        self._next = clock.monotonic()

    async def wait(self) -> None:
        now = self._clock.monotonic()
        if self._next > now:
            await asyncio.sleep(self._next - now)
        self._next = max(now, self._next) + self._gap_s


class _WayBack:
    """Puts messages back, if it can be under the routing keys they were published with."""

    def __init__(self, publisher: Publisher, detours: Detours) -> None:
        self._publisher = publisher
        self._detours = detours
        self.rekeyed = 0

    async def send(self, message: Fetched, target: str) -> None:
        exchange, key = await self._route(message.headers, target)
        properties = renewed_properties(message.properties, _HISTORY)
        await self._publisher.send_encoded(Encoded(exchange or "", key, message.body, properties))
        if exchange is None:
            self._count(target)

    async def close(self) -> None:
        await self._detours.close()

    async def _route(self, headers: object, target: str) -> tuple[str | None, str]:
        """Return exchange and key; None for the exchange where the key is not the one it should be."""
        key = original_key(headers)
        if key is None or key == target or source_queue(headers) != target:
            return "", target
        exchange = await self._detours.to(target)
        return (None, target) if exchange is None else (exchange, key)

    def _count(self, target: str) -> None:
        self.rekeyed += 1
        if self.rekeyed == 1:
            logger.warning(
                "messages are replayed under another routing key than their own, as this user may not make and bind an "
                "exchange: if their queue dead-letters by that key, they are discarded when they fail again",
                extra={"queue": target, "exchange": PREFIX + "*"},
            )
