"""Check with the management API whether a queue has a dead-letter exchange that leads to a queue.

Without one the broker discards rejected messages, and does not report it. The consumer checks at its start, if the
address of the management API is set. See ``queue_probe`` for the check by AMQP alone.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from conquiet.core.log import FactLogger
from conquiet.core.redaction import redact_url
from conquiet.core.threads import call_in_daemon_thread
from conquiet.errors import RabbitError
from conquiet.rabbit.dead_letter_headers import dead_queue
from conquiet.rabbitmq_api import RabbitApi, RabbitApiError, dead_letter_queue, has_dead_letter_exchange, queue_setting

if TYPE_CHECKING:
    from conquiet.rabbit.settings import RabbitSettings

logger = FactLogger(__name__)

_MAX_HOPS: Final = 10


async def find_dead_letters(settings: "RabbitSettings", vhost: str, queue: str) -> bool | None:
    """Return whether the queue has a dead-letter exchange, by the settings or the management API; None if unknown.

    Log a warning if dead letters return to the queue.

    Raises:
        RabbitError: ``require_dead_letter`` is set, and there is no exchange or the API does not describe the queue.
    """
    known = settings.dead_letter
    if settings.management_url is not None:
        api = RabbitApi(settings.management_url)
        try:
            ask = partial(_ask_api, settings, api, vhost, queue)
            known = await asyncio.wrap_future(call_in_daemon_thread("conquiet-rabbit-api", ask))
        except RabbitApiError as error:
            if settings.require_dead_letter and known is None:
                raise RabbitError(
                    f"the management API at {redact_url(settings.management_url)} does not describe queue {queue}: "
                    f"{error.reason}",
                    queue=queue,
                    reason=error.reason,
                ) from error
            logger.warning("cannot find out about a dead-letter exchange", queue=queue)
    if known is False and settings.require_dead_letter:
        raise RabbitError(
            f"queue {queue} has no dead-letter exchange that leads to a queue, and require_dead_letter is set; "
            "set one with a policy or with the argument x-dead-letter-exchange, and bind a queue to it",
            queue=queue,
        )
    return known


def report_missing_dead_letters(queue: str, *, moves: bool, known: bool) -> None:
    """Log at the start where failed messages go, because no dead-letter exchange is known."""
    if moves:
        logger.info(
            "no dead-letter exchange is known for the queue: a message that fails twice is moved to another queue",
            queue=queue,
            to=dead_queue(queue),
        )
    elif known:
        logger.warning(
            "the queue has no dead-letter exchange: a message that fails twice will be discarded",
            queue=queue,
        )
    else:
        logger.warning(
            "the queue was not declared with a dead-letter exchange: unless a policy gives it one, a message that "
            "fails twice will be discarded; pass dead_letter=True if a policy does",
            queue=queue,
        )


def _ask_api(settings: "RabbitSettings", api: RabbitApi, vhost: str, queue: str) -> bool:
    """Return whether the queue has a dead-letter exchange. Warn if dead letters return to the queue. Blocks."""
    description = api.queue(vhost, queue)
    known = settings.dead_letter
    if known is None:
        known = _leads_to_a_queue(api, vhost, queue, description)
    if settings.exhausted == "dead_letter" and _returns_to_queue(api, vhost, queue, description):
        logger.warning(
            'the dead letters of the queue return to it: with exhausted="dead_letter" a message past '
            'max_retries circulates without end; use exhausted="drop" in a retry circuit',
            queue=queue,
        )
    return known


def _returns_to_queue(api: RabbitApi, vhost: str, queue: str, description: Any) -> bool:
    """Return whether dead letters return to the queue. Follows them only through the default exchange."""
    for _ in range(_MAX_HOPS):
        following = dead_letter_queue(description)
        if following is None or following == queue:
            return following == queue
        try:
            description = api.queue(vhost, following)
        except RabbitApiError:  # the queue does not exist, or this user may not see it
            return False
    return False


def _leads_to_a_queue(api: RabbitApi, vhost: str, queue: str, description: Any) -> bool:
    """Return whether the queue has a dead-letter exchange that leads to a queue. Blocks.

    Dead letters are discarded if the exchange does not exist or has no binding, or if it is the default exchange and
    the routing key names no queue. Whether a binding matches the routing key is not checked.
    """
    if not has_dead_letter_exchange(description):
        return False
    exchange, target = str(queue_setting(description, "dead-letter-exchange")), dead_letter_queue(description)
    if exchange:
        found = api.bindings_of(vhost, exchange)
    elif target is not None:
        found = api.queue(vhost, target, missing_ok=True)
    else:
        return True  # to the queue named by the message's routing key, usually this one
    if not found:
        facts = {"queue": queue, "exchange": exchange, "routing_key": target}
        logger.warning("the dead-letter exchange of the queue leads to no queue", **facts)
    return bool(found)
