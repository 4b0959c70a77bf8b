"""What bites users of RabbitMQ, asked of its management API. AMQP itself tells next to nothing about a queue."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from conquiet.kernel.redaction import printable
from conquiet.management.doctor.findings import Finding, Severity

_TIMEOUT_S = 10.0
_MAX_QUEUES = 200
_MANY_UNACKED = 10_000
_OLDEST = (3, 8)
_OK = 200
_UNAUTHORIZED = 401


class RabbitApiError(Exception):
    """The management API did not answer, or not with what was asked for. The text has no credentials."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class RabbitFacts:
    """What the broker said."""

    version: str
    queues: tuple[dict[str, Any], ...]
    wanted: tuple[str, ...] = ()


def management_url(amqp_url: str) -> str:
    """Return where the management API of a broker usually is: the same host and login, port 15672."""
    parts = urlsplit(amqp_url)
    scheme, port = ("https", 15671) if parts.scheme == "amqps" else ("http", 15672)
    login = f"{parts.username}:{parts.password or ''}@" if parts.username else ""
    return f"{scheme}://{login}{parts.hostname or 'localhost'}:{port}"


def examine_rabbit(api_url: str, vhost: str = "/", *, queues: tuple[str, ...] = ()) -> list[Finding]:
    """Gather the facts and return what is wrong, the worst first.

    Args:
        api_url: ``http://user:password@host:15672``.
        vhost: Where the queues are.
        queues: Those that have to be there; the others in the vhost are looked at too.

    Raises:
        RabbitApiError: The API is not there.
    """
    facts = gather(api_url, vhost, queues)
    found = [finding for check in CHECKS for finding in check(facts)]
    return sorted(found, key=lambda finding: -list(Severity).index(finding.severity))


def gather(api_url: str, vhost: str, queues: tuple[str, ...]) -> RabbitFacts:
    """Ask the broker: two requests, at most 200 queues."""
    overview = _get(api_url, "/api/overview")
    page = _get(api_url, f"/api/queues/{quote(vhost, safe='')}?page=1&page_size={_MAX_QUEUES}")
    items = page.get("items", []) if isinstance(page, dict) else page
    return RabbitFacts(str(overview.get("rabbitmq_version", "0")), tuple(items), queues)


def _get(api_url: str, path: str) -> Any:
    parts = urlsplit(api_url)
    login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
    headers = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    try:
        with closing(kind(parts.hostname or "localhost", parts.port or 15672, timeout=_TIMEOUT_S)) as connection:
            connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
            response = connection.getresponse()
            body = response.read()
        if response.status == _OK:
            return json.loads(body)
    except (OSError, HTTPException, ValueError) as error:
        raise RabbitApiError(f"no answer ({type(error).__name__})") from error
    raise RabbitApiError(f"HTTP {response.status}", refused=response.status == _UNAUTHORIZED)


def _setting(queue: dict[str, Any], argument: str, policy: str) -> Any:
    arguments = queue.get("arguments") or {}
    effective = queue.get("effective_policy_definition") or {}
    return arguments.get(argument, effective.get(policy) if isinstance(effective, dict) else None)


def _name(queue: dict[str, Any]) -> str:
    return printable(queue.get("name", ""))


def _is_dead_letter_queue(facts: RabbitFacts, queue: dict[str, Any]) -> bool:
    """Whether another queue's rejects end here, as far as routing keys say: such a queue needs no DLX itself."""
    return any(
        _setting(other, "x-dead-letter-routing-key", "dead-letter-routing-key") == queue.get("name")
        for other in facts.queues
    )


def check_version(facts: RabbitFacts) -> Iterator[Finding]:
    """Too old for quorum queues."""
    parts = tuple(int(part) for part in facts.version.split(".")[:2] if part.isdigit())
    if parts < _OLDEST:
        yield Finding(
            "rabbit.version",
            Severity.ERROR,
            f"the broker is version {printable(facts.version)}",
            "quorum queues, and with them a counted number of deliveries, came with 3.8",
            "update RabbitMQ",
        )


def check_missing(facts: RabbitFacts) -> Iterator[Finding]:
    """A queue that should be there."""
    there = {queue.get("name") for queue in facts.queues}
    for name in facts.wanted:
        if name not in there:
            yield Finding(
                "rabbit.missing_queue",
                Severity.ERROR,
                f"there is no queue {printable(name)!r}",
                "consumers do not start, and messages for it are returned or lost",
                "declare it, or correct the name",
            )


def check_type(facts: RabbitFacts) -> Iterator[Finding]:
    """Queues that do not survive."""
    for queue in facts.queues:
        if not queue.get("durable", True):
            yield Finding(
                "rabbit.durability",
                Severity.ERROR,
                f"queue {_name(queue)!r} is not durable",
                "a restart of the broker deletes it with its messages",
                "declare it anew as durable, best as a quorum queue",
            )
        elif queue.get("type", "classic") == "classic":
            yield Finding(
                "rabbit.queue_type",
                Severity.NOTE,
                f"queue {_name(queue)!r} is a classic queue",
                "it lives on one node, and the broker does not count its deliveries",
                "use a quorum queue (x-queue-type: quorum)",
            )


def check_dead_letters(facts: RabbitFacts) -> Iterator[Finding]:
    """Rejects that vanish."""
    for queue in facts.queues:
        exchange = _setting(queue, "x-dead-letter-exchange", "dead-letter-exchange")
        if exchange is None and not _is_dead_letter_queue(facts, queue):
            yield Finding(
                "rabbit.dead_letters",
                Severity.WARNING,
                f"queue {_name(queue)!r} has no dead-letter exchange",
                "a message that is rejected without requeue is discarded in silence",
                "set x-dead-letter-exchange by a policy, and bind a queue to it",
            )


def check_delivery_limit(facts: RabbitFacts) -> Iterator[Finding]:
    """Quorum queues that deliver for ever."""
    new_default = tuple(int(part) for part in facts.version.split(".")[:1] if part.isdigit()) >= (4,)
    for queue in facts.queues:
        limit = _setting(queue, "x-delivery-limit", "delivery-limit")
        if queue.get("type") == "quorum" and limit is None and not new_default:
            yield Finding(
                "rabbit.delivery_limit",
                Severity.WARNING,
                f"quorum queue {_name(queue)!r} has no delivery limit",
                "a message that kills its consumer comes back for ever",
                "set delivery-limit by a policy, together with a dead-letter exchange",
            )


def check_consumers(facts: RabbitFacts) -> Iterator[Finding]:
    """Queues nobody reads, and heaps that nobody settles."""
    for queue in facts.queues:
        ready, unacked = int(queue.get("messages_ready") or 0), int(queue.get("messages_unacknowledged") or 0)
        if ready and not queue.get("consumers") and not _is_dead_letter_queue(facts, queue):
            yield Finding(
                "rabbit.consumers",
                Severity.WARNING,
                f"queue {_name(queue)!r} holds {ready:,} messages and has no consumer",
                "nobody is working on them",
                "start a consumer (conquiet rabbit run)",
            )
        if unacked > _MANY_UNACKED:
            yield Finding(
                "rabbit.unacked",
                Severity.WARNING,
                f"queue {_name(queue)!r} has {unacked:,} messages delivered and not settled",
                "they sit in the consumers' memory, and come back all at once when one dies",
                "set a prefetch (2 x concurrency is conquiet's default), and look for stuck consumers",
            )


def check_timeout(facts: RabbitFacts) -> Iterator[Finding]:
    """A consumer timeout shorter than a slow handler."""
    for queue in facts.queues:
        timeout = _setting(queue, "x-consumer-timeout", "consumer-timeout")
        if isinstance(timeout, int) and timeout < 60_000:  # noqa: PLR2004 - the broker's default is 30 minutes
            yield Finding(
                "rabbit.consumer_timeout",
                Severity.WARNING,
                f"queue {_name(queue)!r} has a consumer timeout of {timeout / 1000:g} s",
                "the broker closes the channel of a handler that takes longer, and delivers its message again",
                "raise consumer-timeout above the slowest handler",
            )


CHECKS: tuple[Callable[[RabbitFacts], Iterator[Finding]], ...] = (
    check_version,
    check_missing,
    check_type,
    check_dead_letters,
    check_delivery_limit,
    check_consumers,
    check_timeout,
)
