"""Determine whether reading the messages of a RabbitMQ queue (peeking) may delete them.

Peeking takes a message and releases it. A quorum queue deletes a message that was released more often than its delivery
limit. Before RabbitMQ 4.3 every release counts. From 4.3 on no release counts, but a message keeps the count of the
queue it died in, and a message above the limit is deleted when it is released. The default limit is 20 for both queues,
so a message that died of the first queue's limit exceeds the second's. See docs/decisions/0023.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from conquiet.core.redaction import printable
from conquiet.core.versions import release_of
from conquiet.errors import ConfigurationError
from conquiet.rabbit.connection import Link
from conquiet.rabbit.queue_probe import has_delivery_limit
from conquiet.rabbitmq_api import (
    DEFAULT_DELIVERY_LIMIT,
    RabbitApi,
    RabbitApiError,
    delivery_limit,
    nack_is_uncounted,
)


class PeekUnsafeError(ConfigurationError):
    """Peeking would delete messages, or count toward their deletion. No message was lost.

    Attributes:
        would_delete: Already the first release would delete some, so ``count_a_delivery`` cannot allow it.
    """

    def __init__(self, message: str, *, would_delete: bool = False) -> None:
        super().__init__(message)
        self.would_delete = would_delete


@dataclass(frozen=True, slots=True)
class PeekCost:
    """The effect of taking a message from a queue and releasing it.

    Attributes:
        limited: The queue has a delivery limit, or may have one.
        limit: The broker deletes a message that is released more often; None if the limit is unknown.
        counted: A release counts toward the limit. If not, only a message that arrived with a higher count is deleted.
    """

    limited: bool
    limit: int | None = None
    counted: bool = True

    @property
    def deletes(self) -> bool:
        """True if peeking is known to delete messages. The affected ones can be seen only after taking them."""
        return self.limited and (self.limit == 0 or (self.limit is not None and not self.counted))

    def require_free(self, queue: str, *, count_a_delivery: bool) -> None:
        """Raise ``PeekUnsafeError`` if peeking deletes messages, or counts and ``count_a_delivery`` is False."""
        if self.deletes or (self.limited and not count_a_delivery):
            raise PeekUnsafeError(
                f"nothing was taken from queue {printable(queue)!r}: {self._limit_text()}, and {self._effect_text()}",
                would_delete=self.deletes,
            )

    def check_deliveries(self, queue: str, deliveries: int | None, *, count_a_delivery: bool) -> None:
        """Raise ``PeekUnsafeError`` if a message with ``deliveries`` may be deleted by the release after this one.

        If the limit is unknown, one delivery is too many. With ``count_a_delivery`` the default limit of RabbitMQ 4 is
        assumed instead.
        """
        if not (self.limited and self.counted) or deliveries is None:
            return
        unknown = DEFAULT_DELIVERY_LIMIT if count_a_delivery else 2
        if deliveries >= (unknown if self.limit is None else self.limit) - 1:
            raise PeekUnsafeError(
                f"stopped at a message of queue {printable(queue)!r} that was released {deliveries} times: "
                f"{self._limit_text()}, and peeking once more may delete it; replay or discard it now, "
                "or raise the limit"
            )

    def _limit_text(self) -> str:
        if self.limit is None:
            return "it is a quorum queue, or may be one, with a delivery limit that only the management API knows"
        return f"it is a quorum queue with a delivery limit of {self.limit}"

    def _effect_text(self) -> str:
        if self.counted:
            return "peeking counts one delivery for every message it reads, until the broker deletes the message"
        return "peeking would delete every message whose delivery count already exceeds the limit"


FREE: Final = PeekCost(limited=False)


async def find_peek_cost(link: Link, api_url: str | None, vhost: str, queue: str) -> PeekCost:
    """Determine the cost by the management API, or else as far as AMQP alone shows it. Takes no message."""
    if api_url is not None:
        api = RabbitApi(api_url)
        try:
            description = await asyncio.to_thread(api.queue, vhost, queue)
            return cost_from_description(description, await asyncio.to_thread(api.version))
        except RabbitApiError:
            pass
    if await has_delivery_limit(link, queue):
        return PeekCost(limited=True, counted=not nack_is_uncounted(link.broker_release))
    return FREE


def cost_from_description(description: dict[str, Any], version: str) -> PeekCost:
    """Return the cost for a queue by its description from the management API."""
    limit = delivery_limit(description, version)
    if limit is None:
        return FREE
    return PeekCost(limited=True, limit=limit, counted=not nack_is_uncounted(release_of(version)))
