"""What a look into a RabbitMQ queue costs: a quorum queue counts it, and deletes what was looked at too often."""

import asyncio
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from conquiet.errors import ConfigurationError
from conquiet.kernel.redaction import printable
from conquiet.management.rabbit_api import DEFAULT_LIMIT, RabbitApiError, ask_api, delivery_limit, release_of

_NACKS_ARE_FREE_SINCE: Final = (4, 3)


class CountedLookError(ConfigurationError):
    """Looking would bring the messages nearer to being deleted. Nothing was lost."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What it costs to take a message of a queue and to hand it back.

    Attributes:
        counted: The queue counts it, or may.
        limit: More often than this, and the broker deletes the message. None: it is not known.
    """

    counted: bool
    limit: int | None = None

    def refuse(self, queue: str) -> None:
        """Raise if a look is not free."""
        if self.counted:
            raise CountedLookError(
                f"queue {printable(queue)!r} was not looked into: {self._why()}, and each look brings every message "
                "that is seen one delivery nearer to being deleted by the broker"
            )

    def check(self, queue: str, deliveries: int | None) -> None:
        """Raise if a message that was handed back so often can be handed back just once more."""
        if self.counted and deliveries is not None:
            limit = DEFAULT_LIMIT if self.limit is None else self.limit
            if deliveries >= limit - 1:
                raise CountedLookError(
                    f"stopped at a message of queue {printable(queue)!r} that was handed back {deliveries} times: "
                    f"{self._why()}, and another look would delete it; replay or discard it now, or raise the limit"
                )

    def _why(self) -> str:
        if self.limit is None:
            return "it is a quorum queue, or may be one, with a delivery limit that only the management API tells"
        return f"it is a quorum queue with a delivery limit of {self.limit}"


FREE: Final = Cost(counted=False)


async def cost_of_a_look(amqp_url: str, api_url: str, queue: str) -> Cost:
    """Learn it from the management API; where that does not answer, as far as AMQP tells. Takes no message."""
    from conquiet.rabbit.address import Address
    from conquiet.rabbit.counting import may_count_deliveries

    vhost = quote(unquote(urlsplit(amqp_url).path[1:]) or "/", safe="")
    try:
        facts = await asyncio.to_thread(ask_api, api_url, f"/api/queues/{vhost}/{quote(queue, safe='')}")
        overview = await asyncio.to_thread(ask_api, api_url, "/api/overview")
    except RabbitApiError:
        counts = await may_count_deliveries(Address((amqp_url,), name="conquiet.operator"), queue)
        return Cost(counted=counts)
    return cost_by_facts(facts, str(overview.get("rabbitmq_version", "0")))


def cost_by_facts(facts: dict[str, Any], version: str) -> Cost:
    """Read it from what the management API says about the queue and the broker."""
    if release_of(version) >= _NACKS_ARE_FREE_SINCE:
        return FREE
    limit = delivery_limit(facts, version)
    return FREE if limit is None else Cost(counted=True, limit=limit)
