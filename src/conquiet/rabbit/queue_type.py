"""Determine by AMQP alone, without taking a message, whether a queue counts how often messages return to it.

A quorum queue counts, and drops a message that returned more often than its delivery limit. Measured on RabbitMQ 3.10:
nack, reject, recover and the end of a channel all count. On 4.3.6 a reject and the end of a channel count; a nack,
which is used here to release messages, does not. But there a message keeps the count of the queue it died in. If that
count exceeds the limit, as after a death by an equal limit, a nack drops the message too.

No reply of AMQP names the type of a queue, but a refusal does. Every queue that is not a stream refuses a consumer with
an argument for streams, and the text contains the type (3.10 and 4.3.6). The consumer is never created, so no message
is delivered or marked.

See docs/decisions/0021.
"""

import re
from dataclasses import replace
from typing import Final

from conquiet.core.log import FactLogger
from conquiet.rabbit.connection import Link
from conquiet.rabbit.settle import SettlePolicy

logger = FactLogger(__name__)

_QUORUM: Final = "quorum"
_TYPE: Final = re.compile(r"of queue type rabbit_([a-z]+)_queue")
# A stream refuses the consumer too: it requires a prefetch, and the channel has none.
_FOR_STREAMS_ALONE: Final = {"x-stream-offset": "next"}


async def queue_type(link: Link, queue: str) -> str | None:
    """Return ``classic`` or ``quorum``; None if the text of the refusal is not recognised."""
    refusal = await link.channel_close_reason(
        lambda channel, done: channel.basic_consume(queue, _ignore, arguments=_FOR_STREAMS_ALONE, callback=done)
    )
    found = _TYPE.search(refusal)
    return None if found is None else found[1]


async def resolve_policy(policy: SettlePolicy, link: Link, queue: str) -> SettlePolicy:
    """Return the policy for this queue. If the queue does not count, the ``redelivered`` flag decides."""
    if policy.name == "redelivered" or await queue_type(link, queue) in {_QUORUM, None}:
        return policy
    logger.warning(
        'the queue does not count deliveries: with settle="delivery_count" it needs a quorum queue; '
        "until then a message that fails is put back once",
        queue=queue,
    )
    return replace(policy, name="redelivered")


async def has_delivery_limit(link: Link, queue: str) -> bool:
    """Return whether the queue may drop messages that return to it. True if unknown."""
    return await queue_type(link, queue) in {_QUORUM, None}


def _ignore(*_: object) -> None:
    """Do nothing: the consumer is always refused."""
