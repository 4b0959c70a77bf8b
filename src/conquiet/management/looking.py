"""What a look into a RabbitMQ queue costs: a quorum queue deletes what was handed back beyond its delivery limit.

Before RabbitMQ 4.3 each look counts. From then on none does, but a message brings its count along from the queue it
died in, and one that has more than the limit is deleted when it is handed back, however that is done. The default limit
is 20 there, for the queue it died in as for the dead-letter queue: what died of the one is beyond the other.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from conquiet.errors import ConfigurationError
from conquiet.kernel.redaction import printable
from conquiet.management.rabbit_api import DEFAULT_LIMIT, RabbitApiError, ask_api, delivery_limit, nacks_are_free


class CountedLookError(ConfigurationError):
    """Looking would delete messages, or bring them nearer to it. Nothing was lost.

    Attributes:
        deadly: It would delete some at once, so that nobody may allow it.
    """

    def __init__(self, message: str, *, deadly: bool = False) -> None:
        super().__init__(message)
        self.deadly = deadly


@dataclass(frozen=True, slots=True)
class Cost:
    """What it costs to take a message of a queue and to hand it back.

    Attributes:
        limited: The queue has a delivery limit, or may have one.
        limit: More often than this, and the broker deletes the message. None: it is not known.
        counted: Handing back counts toward it. If not, only a message that came with more is in danger.
    """

    limited: bool
    limit: int | None = None
    counted: bool = True

    @property
    def deadly(self) -> bool:
        """Whether a look is known to delete messages, and which ones is only seen when it is too late."""
        return self.limited and (self.limit == 0 or (self.limit is not None and not self.counted))

    def refuse(self, queue: str) -> None:
        """Raise if a look is not free."""
        if self.limited:
            raise CountedLookError(
                f"queue {printable(queue)!r} was not looked into: {self._why()}, and {self._danger()}",
                deadly=self.deadly,
            )

    def check(self, queue: str, deliveries: int | None) -> None:
        """Raise if a message that was handed back so often can be handed back just once more."""
        if self.limited and self.counted and deliveries is not None:
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

    def _danger(self) -> str:
        if self.counted:
            return "each look brings every message that is seen one delivery nearer to being deleted by the broker"
        return (
            "a look makes the broker delete every message that came with more deliveries than that, as one does that "
            "died of the same limit"
        )


FREE: Final = Cost(limited=False)


async def cost_of_a_look(amqp_url: str, api_url: str, queue: str) -> Cost:
    """Learn it from the management API; where that does not answer, as far as AMQP tells. Takes no message."""
    vhost = quote(unquote(urlsplit(amqp_url).path[1:]) or "/", safe="")
    try:
        facts = await asyncio.to_thread(ask_api, api_url, f"/api/queues/{vhost}/{quote(queue, safe='')}")
        overview = await asyncio.to_thread(ask_api, api_url, "/api/overview")
    except RabbitApiError:
        return await _cost_by_amqp(amqp_url, queue)
    return cost_by_facts(facts, str(overview.get("rabbitmq_version", "0")))


def cost_by_facts(facts: dict[str, Any], version: str) -> Cost:
    """Read it from what the management API says about the queue and the broker."""
    limit = delivery_limit(facts, version)
    return FREE if limit is None else Cost(limited=True, limit=limit, counted=not nacks_are_free(version))


async def _cost_by_amqp(url: str, queue: str) -> Cost:
    from conquiet.rabbit import counting
    from conquiet.rabbit.address import Address
    from conquiet.rabbit.connection import Link

    link = await Link.open(Address((url,), name="conquiet.operator"))
    try:
        if await counting.may_drop_hand_backs(link, queue):
            return Cost(limited=True, counted=not counting.nacks_are_free(link))
        return FREE
    finally:
        await link.close()
