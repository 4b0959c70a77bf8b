"""Does the queue have a dead-letter exchange? AMQP cannot say; the management API can.

Without one, a reject without requeue discards the message silently. So the question is asked at the start, when
somebody gave us the address of the management API, and the answer is logged or insisted on.
"""

import asyncio
import base64
import json
import logging
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import quote, unquote, urlsplit

from conquiet.errors import RabbitError
from conquiet.kernel.redaction import redact_url

if TYPE_CHECKING:
    from conquiet.rabbit.config import RabbitConfig

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_HOPS: Final = 10
_TIMEOUT_S: Final = 10.0
_OK: Final = 200


def has_dead_letter_exchange(description: Any) -> bool:
    """Read the answer out of the management API's description of a queue: its arguments or its effective policy."""
    # The empty name is the default exchange, which is one: only a missing key means "none".
    return _setting(description, "dead-letter-exchange") is not None


def dead_letter_queue(description: Any) -> str | None:
    """Return the queue to which a queue's dead letters go; None when that is for an exchange's bindings to say."""
    if _setting(description, "dead-letter-exchange") != "":
        return None
    # Without a key of its own a message keeps the one it was published with. We do not know that one.
    key = _setting(description, "dead-letter-routing-key")
    return key if isinstance(key, str) and key else None


def _setting(description: Any, name: str) -> Any:
    facts = description if isinstance(description, dict) else {}
    arguments, policy = facts.get("arguments"), facts.get("effective_policy_definition")
    own = arguments.get(f"x-{name}") if isinstance(arguments, dict) else None
    if own is not None:  # what a queue was declared with wins over its policy
        return own
    return policy.get(name) if isinstance(policy, dict) else None


async def check_dead_letters(config: "RabbitConfig", vhost: str, queue: str) -> None:
    """Find out whether failed messages would be kept, and not go round for ever, where that can be known.

    Raises:
        RabbitError: ``require_dead_letter`` is set and there is no exchange, or nobody can say.
    """
    known, url = config.dead_letter, config.management_url
    if url is not None:
        try:
            answer = await _aside(ask_management, url, vhost, queue)
            known = has_dead_letter_exchange(answer) if known is None else known
            if config.exhausted == "dead_letter" and await _aside(_comes_back, url, vhost, queue, answer):
                logger.warning(
                    'the dead letters of the queue come back to it: with exhausted="dead_letter" a message past '
                    'max_retries goes round for ever; use exhausted="drop" in a retry circuit',
                    extra={"queue": queue},
                )
        except RabbitError:
            if config.require_dead_letter and known is None:
                raise
            logger.warning("cannot find out about a dead-letter exchange", extra={"queue": queue})
    if known is not False:
        return
    if config.require_dead_letter:
        raise RabbitError(
            f"queue {queue} has no dead-letter exchange and require_dead_letter is set; "
            "set one with a policy or with the argument x-dead-letter-exchange",
            queue=queue,
        )
    logger.warning(
        "the queue has no dead-letter exchange: a message that fails twice will be discarded",
        extra={"queue": queue},
    )


async def _aside(ask: Callable[..., T], *args: Any) -> T:
    """Call a function that blocks, in a thread that keeps nobody: not the loop, and not the end of the process."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if answer.cancelled():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(cast("T", result))

    def work() -> None:
        result, error = None, None
        try:
            result = ask(*args)
        except BaseException as raised:  # noqa: BLE001 - told to whoever asked
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=work, name="conquiet-rabbit-question", daemon=True).start()
    return await answer


def _comes_back(url: str, vhost: str, queue: str, description: Any) -> bool:
    """Follow the dead letters from queue to queue, as far as they go by the default exchange."""
    for _ in range(_MOST_HOPS):
        following = dead_letter_queue(description)
        if following is None or following == queue:
            return following == queue
        try:
            description = ask_management(url, vhost, following)
        except RabbitError:  # a queue that is not there, or not for us to see
            return False
    return False


def ask_management(management_url: str, vhost: str, queue: str) -> Any:
    """Return the management API's description of a queue. Blocks: call it off the event loop.

    Raises:
        RabbitError: No answer, or not a good one. The text has no credentials.
    """
    parts = urlsplit(management_url)
    login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
    headers = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    path = f"{parts.path.rstrip('/')}/api/queues/{quote(vhost, safe='')}/{quote(queue, safe='')}"
    try:
        with closing(kind(parts.hostname or "localhost", parts.port or 15672, timeout=_TIMEOUT_S)) as connection:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read()
        if response.status == _OK:
            return json.loads(body)
        reason = f"HTTP {response.status}"
    except (OSError, HTTPException, ValueError) as error:
        reason = type(error).__name__
    raise RabbitError(
        f"the management API at {redact_url(management_url)} does not describe queue {queue}: {reason}",
        queue=queue,
        reason=reason,
    )
