"""Determine facts of a queue by AMQP alone, without taking a message or changing the queue. Refusals name them.

No reply of AMQP names the type of a queue or its arguments, but a refusal does (RabbitMQ 3.10 and 4.3.6):

- Type: every queue that is not a stream refuses a consumer with an argument for streams, and the text contains the
  type. The consumer is never created, so no message is delivered or marked.
- Arguments: if an existing queue is declared with other arguments, the broker names the first argument that differs and
  its current value. The declaration sent here has a number in place of the exchange's name. The broker always refuses
  that, even if the queue does not exist. So no queue is ever created or changed.

A quorum queue counts how often messages return to it, and drops a message that returned more often than its delivery
limit. Measured on RabbitMQ 3.10: nack, reject, recover and the end of a channel all count. On 4.3.6 a reject and the
end of a channel count; a nack, which is used here to release messages, does not. But there a message keeps the count of
the queue it died in. If that count exceeds the limit, as after a death by an equal limit, a nack drops the message too.

A policy may set a dead-letter exchange too. AMQP reports neither policies nor the bindings of an exchange; the
management API does. So an exchange with a name is trusted if it exists. The alternative is to move messages although
the queue has such an exchange, and that would remove every message from a retry circuit after its first round.

See docs/decisions/0021.
"""

import re
from dataclasses import replace
from typing import Any, Final

from conquiet.core.log import FactLogger
from conquiet.rabbit.connection import Link, no_delivery
from conquiet.rabbit.settle import SettlePolicy

logger = FactLogger(__name__)

_QUORUM: Final = "quorum"
_TYPE: Final = re.compile(r"of queue type rabbit_([a-z]+)_queue")
# A stream refuses the consumer too: it requires a prefetch, and the channel has none.
_FOR_STREAMS_ALONE: Final = {"x-stream-offset": "next"}

_EXCHANGE: Final = "x-dead-letter-exchange"
_KEY: Final = "x-dead-letter-routing-key"
_DIFFERS: Final = re.compile(r"inequivalent arg '([^']+)' for .* but current is (.*)$", re.DOTALL)
_NUMBER: Final = re.compile(r"the value '(\d+)' of type '[a-z]+'")
_NEVER_A_NAME: Final = 1
_FLAGS: Final = ("durable", "auto_delete", "exclusive")
_MAX_QUESTIONS: Final = 7  # the flags, then the arguments the broker compares first, then the routing key


async def queue_type(link: Link, queue: str) -> str | None:
    """Return ``classic`` or ``quorum``; None if the text of the refusal is not recognised."""
    refusal = await link.channel_close_reason(
        lambda channel, done: channel.basic_consume(queue, no_delivery, arguments=_FOR_STREAMS_ALONE, callback=done)
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


async def was_declared_with_dead_letters(link: Link, queue: str) -> bool | None:
    """Return whether the queue has an argument ``x-dead-letter-exchange`` with an existing target.

    The target is another exchange, or the default exchange with a routing key that names a queue. Without a target the
    broker discards dead letters.

    Return None if unknown: the user may not configure the queue, or the text of the refusal is not recognised.
    """
    flags = {"durable": True, "auto_delete": False, "exclusive": False}
    arguments: dict[str, Any] = {_EXCHANGE: _NEVER_A_NAME}
    for _ in range(_MAX_QUESTIONS):
        found = _DIFFERS.search(await _refusal(link, queue, flags, arguments))
        if found is None:
            return None
        name, current = found.groups()
        if name == _EXCHANGE:
            if current == "none":
                return False
            if current != "''":
                return await _exchange_exists(link, current[1:-1])
            arguments |= {_EXCHANGE: "", _KEY: _NEVER_A_NAME}
        elif name == _KEY:
            # Without this argument a message keeps its routing key. That is usually this queue's name.
            return current == "none" or await _queue_exists(link, current[1:-1])
        elif name in _FLAGS:
            flags[name] = current == "'true'"
        elif (number := _NUMBER.fullmatch(current)) is not None:
            arguments[name] = int(number[1])
        else:
            return None
    return None


async def _refusal(link: Link, queue: str, flags: dict[str, bool], arguments: dict[str, Any]) -> str:
    return await link.channel_close_reason(
        lambda channel, done: channel.queue_declare(queue, **flags, arguments=arguments, callback=done)
    )


async def _exchange_exists(link: Link, exchange: str) -> bool:
    # After any refusal it is unknown. False is the safe result: a message that is moved is not lost.
    exists = not await link.channel_close_reason(
        lambda channel, done: channel.exchange_declare(exchange, passive=True, callback=done)
    )
    if exists:
        logger.info(
            "the bindings of the dead-letter exchange were not checked: without a binding the broker discards what is "
            "dead-lettered; give management_url to have them checked, or pass dead_letter=True",
            exchange=exchange,
        )
    return exists


async def _queue_exists(link: Link, queue: str) -> bool:
    return not await link.channel_close_reason(
        lambda channel, done: channel.queue_declare(queue, passive=True, callback=done)
    )
