"""Whether a queue counts how often its messages come back, learned by AMQP alone and without taking any.

A quorum queue counts, and drops a message that came back more often than its delivery limit. Measured on RabbitMQ 3.10:
nack, reject, recover and the end of a channel all count. On 4.3.6 a nack, which is what hands a message back here, does
not; a reject and the end of a channel do. But there a message brings its count along from the queue it died in, and one
that has more than the limit already, such as one that died of the same limit, is dropped by a nack too.

No answer of AMQP names the type of a queue, but a refusal does: a consumer with an argument that only streams know is
refused by every other queue, with its type in the text (3.10 and 4.3.6). No consumer comes of it, so nothing is
delivered and no message is marked.

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
# A stream refuses the consumer too: it wants a prefetch, and the channel has none.
_FOR_STREAMS_ALONE: Final = {"x-stream-offset": "next"}


async def queue_type(link: Link, queue: str) -> str | None:
    """Return ``classic`` or ``quorum``; None where the broker's answer is none we know."""
    refusal = await link.channel_close_reason(
        lambda channel, done: channel.basic_consume(queue, _ignore, arguments=_FOR_STREAMS_ALONE, callback=done)
    )
    found = _TYPE.search(refusal)
    return None if found is None else found[1]


async def resolve_policy(policy: SettlePolicy, link: Link, queue: str) -> SettlePolicy:
    """Return the policy for this queue: where it does not count, the flag decides."""
    if policy.name == "redelivered" or await queue_type(link, queue) in {_QUORUM, None}:
        return policy
    logger.warning(
        'the queue does not count deliveries: with settle="delivery_count" it wants to be a quorum queue; '
        "until then a message that fails is put back once",
        queue=queue,
    )
    return replace(policy, name="redelivered")


async def has_delivery_limit(link: Link, queue: str) -> bool:
    """Return whether the queue may drop what is returned to it. True also where the answer is unclear."""
    return await queue_type(link, queue) in {_QUORUM, None}


def _ignore(*_: object) -> None:
    """Stand in for a consumer that no broker allows."""
