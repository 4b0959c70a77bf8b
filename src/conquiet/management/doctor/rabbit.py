"""Checks of RabbitMQ by its management API. AMQP reports almost nothing about a queue."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from conquiet.core.redaction import printable
from conquiet.core.versions import release_of
from conquiet.management.doctor.findings import Finding, run_checks
from conquiet.rabbitmq_api import RabbitApi, delivery_limit, nack_is_uncounted, queue_setting

_MAX_QUEUES = 200
_MAX_EXCHANGES = 50
_MANY_UNACKED = 10_000
_OLDEST = (3, 10)
_NO_CLASSIC_TIMEOUT_SINCE = (4, 3)
_WHAT_LIMITS_DO = "each peek at a dead letter counts as a delivery, and the broker deletes what was peeked at too often"
_WHAT_LIMITS_DO_SINCE_4_3 = (
    "a message keeps the count of the queue it died in, and at the first peek the broker deletes what exceeds the "
    "limit, such as a message that died of the same limit"
)


@dataclass(frozen=True, slots=True)
class RabbitFacts:
    """Facts about the broker.

    Attributes:
        queues: The first queues of the vhost, and all existing queues of ``wanted``.
        wanted: Names of queues that must exist.
        total: Number of queues of the vhost; 0 if unknown.
        bound_to_dlx: Names of queues that are bound to the dead-letter exchange of another queue.
    """

    version: str
    queues: tuple[dict[str, Any], ...]
    wanted: tuple[str, ...] = ()
    total: int = 0
    bound_to_dlx: frozenset[str] = frozenset()


def examine_rabbit(api_url: str, vhost: str = "/", *, queues: tuple[str, ...] = ()) -> list[Finding]:
    """Gather the facts and return the findings, the most severe first.

    Args:
        api_url: ``http://user:password@host:15672``.
        vhost: The vhost of the queues.
        queues: Queues that must exist. The other queues of the vhost are checked too.

    Raises:
        ConfigurationError: ``api_url`` is not an HTTP URL.
        RabbitApiError: The API cannot be reached.
    """
    facts = gather(api_url, vhost, queues)
    return run_checks(CHECKS, facts)


def gather(api_url: str, vhost: str, queues: tuple[str, ...]) -> RabbitFacts:
    """Read the facts. Bounded: the first 200 queues, the named ones, and the bindings of 50 dead-letter exchanges."""
    api = RabbitApi(api_url)
    version = api.version()
    page = api.get(f"/api/queues/{quote(vhost, safe='')}?page=1&page_size={_MAX_QUEUES}")
    items = list(page.get("items", []))
    there = {item.get("name") for item in items}
    # A queue that is not on the page may still exist.
    named = (api.queue(vhost, name, missing_ok=True) for name in dict.fromkeys(queues) if name not in there)
    items += [queue for queue in named if queue is not None]
    return RabbitFacts(
        version,
        tuple(items),
        queues,
        total=int(page.get("total_count") or 0),
        bound_to_dlx=_bound(api, vhost, items),
    )


def _bound(api: RabbitApi, vhost: str, queues: list[dict[str, Any]]) -> frozenset[str]:
    exchanges = {_dead_letter_exchange(queue) for queue in queues} - {None, ""}
    bindings = (api.bindings_of(vhost, str(name)) for name in sorted(exchanges, key=str)[:_MAX_EXCHANGES])
    return frozenset(
        str(one.get("destination")) for found in bindings for one in found if one.get("destination_type") == "queue"
    )


def _name(queue: dict[str, Any]) -> str:
    return printable(queue.get("name", ""))


def _dead_letter_exchange(queue: dict[str, Any]) -> Any:
    return queue_setting(queue, "dead-letter-exchange")


def _is_dead_letter_queue(facts: RabbitFacts, queue: dict[str, Any]) -> bool:
    """Return whether another queue dead-letters into this one, by routing keys and bindings."""
    return queue.get("name") in facts.bound_to_dlx or any(
        queue_setting(other, "dead-letter-routing-key") == queue.get("name") for other in facts.queues
    )


def _is_last_stop(facts: RabbitFacts, queue: dict[str, Any]) -> bool:
    """Return whether dead letters end here. A retry queue passes them on, so a limit there deletes nothing."""
    return _dead_letter_exchange(queue) is None and _is_dead_letter_queue(facts, queue)


def check_version(facts: RabbitFacts) -> Iterator[Finding]:
    """Report a broker that is older than the tested versions."""
    if release_of(facts.version) < _OLDEST:
        yield Finding.error(
            "rabbit.version",
            f"the broker is version {printable(facts.version)}",
            "conquiet supports 3.10 and newer: older ones were never tested",
            "update RabbitMQ",
        )


def check_missing(facts: RabbitFacts) -> Iterator[Finding]:
    """Report a named queue that does not exist."""
    there = {queue.get("name") for queue in facts.queues}
    for name in facts.wanted:
        if name not in there:
            yield Finding.error(
                "rabbit.missing_queue",
                f"there is no queue {printable(name)!r}",
                "consumers do not start, and messages for it are returned or lost",
                "declare it, or correct the name",
            )


def check_complete(facts: RabbitFacts) -> Iterator[Finding]:
    """Report that some queues were not checked."""
    if facts.total > len(facts.queues):
        yield Finding.warning(
            "rabbit.incomplete",
            f"only {len(facts.queues):,} of {facts.total:,} queues were checked",
            "problems of the others are not reported",
            "name the important queues: --queue, repeatable",
        )


def check_type(facts: RabbitFacts) -> Iterator[Finding]:
    """Report queues that do not survive a restart or a lost node."""
    for queue in facts.queues:
        if queue.get("exclusive"):
            continue  # a reply queue, which is deleted with its connection
        if not queue.get("durable", True):
            yield Finding.error(
                "rabbit.durability",
                f"queue {_name(queue)!r} is not durable",
                "a restart of the broker deletes it with its messages",
                "delete it and declare it as durable, best as a quorum queue",
            )
        elif queue.get("type", "classic") == "classic":
            yield Finding.note(
                "rabbit.queue_type",
                f"queue {_name(queue)!r} is a classic queue",
                "it lives on one node, and the broker does not count its deliveries",
                "use a quorum queue (x-queue-type: quorum)",
            )


def check_dead_letters(facts: RabbitFacts) -> Iterator[Finding]:
    """Report queues that discard rejected messages."""
    for queue in facts.queues:
        ends_here = _dead_letter_exchange(queue) is None and not queue.get("exclusive")
        if ends_here and not _is_dead_letter_queue(facts, queue):
            yield Finding.warning(
                "rabbit.dead_letters",
                f"queue {_name(queue)!r} has no dead-letter exchange",
                "a message that is rejected without requeue is discarded silently",
                "set x-dead-letter-exchange by a policy, and bind a queue to it",
            )


def check_delivery_limit(facts: RabbitFacts) -> Iterator[Finding]:
    """Report quorum queues without a delivery limit, and dead-letter queues with a limit."""
    for queue in facts.queues:
        if queue.get("type") != "quorum":
            continue
        limit = delivery_limit(queue, facts.version)
        if _is_last_stop(facts, queue):
            if limit is not None:
                yield Finding.warning(
                    "rabbit.delivery_limit",
                    f"dead-letter queue {_name(queue)!r} has a delivery limit of {limit}",
                    _WHAT_LIMITS_DO_SINCE_4_3 if nack_is_uncounted(release_of(facts.version)) else _WHAT_LIMITS_DO,
                    "take the limit from it: delivery-limit -1 from RabbitMQ 4.0 on, none before",
                )
        elif limit is None:
            yield Finding.warning(
                "rabbit.delivery_limit",
                f"quorum queue {_name(queue)!r} has no delivery limit",
                "a message that kills its consumer is delivered again without end",
                "set delivery-limit by a policy, together with a dead-letter exchange",
            )


def check_consumers(facts: RabbitFacts) -> Iterator[Finding]:
    """Report queues without consumers, and consumers that settle too few messages."""
    for queue in facts.queues:
        ready, unacked = int(queue.get("messages_ready") or 0), int(queue.get("messages_unacknowledged") or 0)
        if ready and not queue.get("consumers") and not _is_dead_letter_queue(facts, queue):
            yield Finding.warning(
                "rabbit.consumers",
                f"queue {_name(queue)!r} holds {ready:,} messages and has no consumer",
                "they are not handled",
                "start a consumer (conquiet rabbit run)",
            )
        if unacked > _MANY_UNACKED:
            yield Finding.warning(
                "rabbit.unacked",
                f"queue {_name(queue)!r} has {unacked:,} messages delivered and not settled",
                "they are in the consumers' memory, and all return to the queue when a consumer dies",
                "set a prefetch (2 x concurrency is conquiet's default), and check for stuck consumers",
            )


def check_timeout(facts: RabbitFacts) -> Iterator[Finding]:
    """Report a consumer timeout shorter than a slow handler. From 4.3 on it has no effect on a classic queue."""
    for queue in facts.queues:
        if queue.get("type") != "quorum" and release_of(facts.version) >= _NO_CLASSIC_TIMEOUT_SINCE:
            continue
        timeout = queue_setting(queue, "consumer-timeout")
        if isinstance(timeout, int) and timeout < 60_000:  # noqa: PLR2004 - 30 minutes, the default of the broker
            yield Finding.warning(
                "rabbit.consumer_timeout",
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
