"""What it costs to peek into a RabbitMQ queue: a quorum queue deletes what is released beyond its delivery limit.

Before RabbitMQ 4.3 every release counts. From 4.3 on none does, but a message keeps the count of the queue it died in,
and one that exceeds the limit is deleted when it is released. The default limit is 20 on both queues, so what died of
the one limit exceeds the other. See docs/decisions/0023.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from conquiet.core.redaction import printable
from conquiet.core.versions import release_of
from conquiet.errors import ConfigurationError
from conquiet.rabbit.connection import Link
from conquiet.rabbit.queue_type import has_delivery_limit
from conquiet.rabbitmq_api import (
    DEFAULT_DELIVERY_LIMIT,
    RabbitApi,
    RabbitApiError,
    delivery_limit,
    nack_is_uncounted,
)


class PeekUnsafeError(ConfigurationError):
    """Peeking would delete messages, or count toward their deletion. Nothing was lost.

    Attributes:
        would_delete: It would delete some at once, so it cannot be allowed with ``count_a_delivery``.
    """

    def __init__(self, message: str, *, would_delete: bool = False) -> None:
        super().__init__(message)
        self.would_delete = would_delete


@dataclass(frozen=True, slots=True)
class PeekCost:
    """What happens to a message that is taken from a queue and released.

    Attributes:
        limited: The queue has a delivery limit, or may have one.
        limit: The broker deletes a message that is released more often; None if the limit is not known.
        counted: A release counts toward the limit. If not, only a message that came with a higher count is deleted.
    """

    limited: bool
    limit: int | None = None
    counted: bool = True

    @property
    def deletes(self) -> bool:
        """Whether peeking is known to delete messages. Which ones can only be seen when it is too late."""
        return self.limited and (self.limit == 0 or (self.limit is not None and not self.counted))

    def require_free(self, queue: str, *, count_a_delivery: bool) -> None:
        """Raise ``PeekUnsafeError`` if peeking deletes, or counts without being allowed to."""
        if self.deletes or (self.limited and not count_a_delivery):
            raise PeekUnsafeError(
                f"nothing was taken from queue {printable(queue)!r}: {self._limit_text()}, and {self._effect_text()}",
                would_delete=self.deletes,
            )

    def check_deliveries(self, queue: str, deliveries: int | None, *, count_a_delivery: bool) -> None:
        """Raise ``PeekUnsafeError`` if a message with that many deliveries cannot be released a second time.

        With a limit that is not known one delivery is too many, unless ``count_a_delivery`` allows more: then the
        limit is taken for the default of RabbitMQ 4.
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
    """Ask the management API; if that does not answer, learn from AMQP what can be learned. Takes no message."""
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
    """Return the cost for a queue as the management API describes it."""
    limit = delivery_limit(description, version)
    if limit is None:
        return FREE
    return PeekCost(limited=True, limit=limit, counted=not nack_is_uncounted(release_of(version)))
