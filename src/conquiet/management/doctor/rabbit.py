"""What bites users of RabbitMQ, asked of its management API. AMQP itself tells next to nothing about a queue."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from conquiet.kernel.redaction import printable
from conquiet.management.doctor.findings import Finding, Severity
from conquiet.management.rabbit_api import RabbitApiError, ask_api, delivery_limit, nacks_are_free, release_of, setting

_MAX_QUEUES = 200
_MAX_EXCHANGES = 50
_MANY_UNACKED = 10_000
_OLDEST = (3, 10)
_NOT_FOUND = 404
_NO_CLASSIC_TIMEOUT_SINCE = (4, 3)
_WHAT_LIMITS_DO = "each look at a dead letter is a delivery, and the broker deletes what was looked at too often"
_WHAT_LIMITS_DO_SINCE_4_3 = (
    "a message brings its count along, and at the first look the broker deletes what came with more deliveries than "
    "that, such as one that died of the same limit"
)


@dataclass(frozen=True, slots=True)
class RabbitFacts:
    """What the broker said.

    Attributes:
        queues: The first ones of the vhost, and all that were asked for by name and are there.
        wanted: Names of queues that have to be there.
        total: How many queues the vhost has; 0 if it does not say.
        bound_to_dlx: Names of queues that are bound to an exchange some queue sends its rejects to.
    """

    version: str
    queues: tuple[dict[str, Any], ...]
    wanted: tuple[str, ...] = ()
    total: int = 0
    bound_to_dlx: frozenset[str] = frozenset()


def examine_rabbit(api_url: str, vhost: str = "/", *, queues: tuple[str, ...] = ()) -> list[Finding]:
    """Gather the facts and return what is wrong, the worst first.

    Args:
        api_url: ``http://user:password@host:15672``.
        vhost: Where the queues are.
        queues: Those that have to be there; the others in the vhost are looked at too.

    Raises:
        ConfigurationError: ``api_url`` is not one.
        RabbitApiError: The API is not there.
    """
    facts = gather(api_url, vhost, queues)
    found = [finding for check in CHECKS for finding in check(facts)]
    return sorted(found, key=lambda finding: -list(Severity).index(finding.severity))


def gather(api_url: str, vhost: str, queues: tuple[str, ...]) -> RabbitFacts:
    """Ask the broker. Bounded: the first 200 queues and those named, and where 50 dead-letter exchanges lead."""
    overview = ask_api(api_url, "/api/overview")
    place = f"/api/queues/{quote(vhost, safe='')}"
    page = ask_api(api_url, f"{place}?page=1&page_size={_MAX_QUEUES}")
    items = list(page.get("items", []) if isinstance(page, dict) else page)
    there = {item.get("name") for item in items}
    # A page says nothing about a queue that is not on it.
    named = (_find(api_url, f"{place}/{quote(name, safe='')}") for name in dict.fromkeys(queues) if name not in there)
    items += [queue for queue in named if queue is not None]
    return RabbitFacts(
        str(overview.get("rabbitmq_version", "0")),
        tuple(items),
        queues,
        total=int(page.get("total_count") or 0) if isinstance(page, dict) else len(items),
        bound_to_dlx=_bound(api_url, vhost, items),
    )


def _find(api_url: str, path: str) -> Any:
    """Return what is there, or None."""
    try:
        return ask_api(api_url, path)
    except RabbitApiError as error:
        if error.status != _NOT_FOUND:
            raise
        return None


def _bound(api_url: str, vhost: str, queues: list[dict[str, Any]]) -> frozenset[str]:
    exchanges = {_dead_letter_exchange(queue) for queue in queues} - {None, ""}
    bindings = (
        _find(api_url, f"/api/exchanges/{quote(vhost, safe='')}/{quote(str(name), safe='')}/bindings/source") or ()
        for name in sorted(exchanges, key=str)[:_MAX_EXCHANGES]
    )
    return frozenset(
        str(one.get("destination")) for found in bindings for one in found if one.get("destination_type") == "queue"
    )


def _name(queue: dict[str, Any]) -> str:
    return printable(queue.get("name", ""))


def _dead_letter_exchange(queue: dict[str, Any]) -> Any:
    return setting(queue, "x-dead-letter-exchange", "dead-letter-exchange")


def _is_dead_letter_queue(facts: RabbitFacts, queue: dict[str, Any]) -> bool:
    """Whether another queue's rejects come here, as far as routing keys and bindings say."""
    return queue.get("name") in facts.bound_to_dlx or any(
        setting(other, "x-dead-letter-routing-key", "dead-letter-routing-key") == queue.get("name")
        for other in facts.queues
    )


def _is_last_stop(facts: RabbitFacts, queue: dict[str, Any]) -> bool:
    """Whether rejects end here for good: a queue for retries passes them on, and a limit there deletes nothing."""
    return _dead_letter_exchange(queue) is None and _is_dead_letter_queue(facts, queue)


def check_version(facts: RabbitFacts) -> Iterator[Finding]:
    """Older than what conquiet was ever run on."""
    parts = tuple(int(part) for part in facts.version.split(".")[:2] if part.isdigit())
    if parts < _OLDEST:
        yield Finding(
            "rabbit.version",
            Severity.ERROR,
            f"the broker is version {printable(facts.version)}",
            "conquiet supports 3.10 and newer: what differs in older ones was never looked at",
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


def check_complete(facts: RabbitFacts) -> Iterator[Finding]:
    """Queues that nobody looked at."""
    if facts.total > len(facts.queues):
        yield Finding(
            "rabbit.incomplete",
            Severity.WARNING,
            f"only {len(facts.queues):,} of {facts.total:,} queues were looked at",
            "what is wrong with the others is not said here",
            "name those that matter: --queue, repeatable",
        )


def check_type(facts: RabbitFacts) -> Iterator[Finding]:
    """Queues that do not survive."""
    for queue in facts.queues:
        if queue.get("exclusive"):
            continue  # for replies: it is meant to go with its connection
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
        ends_here = _dead_letter_exchange(queue) is None and not queue.get("exclusive")
        if ends_here and not _is_dead_letter_queue(facts, queue):
            yield Finding(
                "rabbit.dead_letters",
                Severity.WARNING,
                f"queue {_name(queue)!r} has no dead-letter exchange",
                "a message that is rejected without requeue is discarded in silence",
                "set x-dead-letter-exchange by a policy, and bind a queue to it",
            )


def check_delivery_limit(facts: RabbitFacts) -> Iterator[Finding]:
    """Quorum queues that deliver for ever, and dead letters that do not last."""
    for queue in facts.queues:
        if queue.get("type") != "quorum":
            continue
        limit = delivery_limit(queue, facts.version)
        if _is_last_stop(facts, queue):
            if limit is not None:
                yield Finding(
                    "rabbit.delivery_limit",
                    Severity.WARNING,
                    f"dead-letter queue {_name(queue)!r} has a delivery limit of {limit}",
                    _WHAT_LIMITS_DO_SINCE_4_3 if nacks_are_free(facts.version) else _WHAT_LIMITS_DO,
                    "take the limit from it: delivery-limit -1 from RabbitMQ 4.0 on, none before",
                )
        elif limit is None:
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
    """A consumer timeout shorter than a slow handler. From 4.3 on it does nothing on a classic queue."""
    for queue in facts.queues:
        if queue.get("type") != "quorum" and release_of(facts.version) >= _NO_CLASSIC_TIMEOUT_SINCE:
            continue
        timeout = setting(queue, "x-consumer-timeout", "consumer-timeout")
        if isinstance(timeout, int) and timeout < 60_000:  # noqa: PLR2004 - the broker's default is 30 minutes
            yield Finding(
                "rabbit.consumer_timeout",
                Severity.WARNING,
                f"queue {_name(queue)!r} has a consumer timeout of {timeout / 1000:g} s",
                "the broker closes the channel of a handler that takes longer (from 4.3 on it cancels the consumer) "
                "and delivers its message again",
                "raise consumer-timeout above the slowest handler",
            )


CHECKS: tuple[Callable[[RabbitFacts], Iterator[Finding]], ...] = (
    check_version,
    check_missing,
    check_complete,
    check_type,
    check_dead_letters,
    check_delivery_limit,
    check_consumers,
    check_timeout,
)
