"""List the queues of a RabbitMQ page by page with the management API. Reads no messages."""

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from conquiet.rabbitmq_api import RabbitApi, default_api_url, has_dead_letter_exchange, queue_setting, vhost_of

if TYPE_CHECKING:
    from conquiet.rabbit import DeliveryFilter, RabbitDeadLetters

_PER_PAGE: Final = 50
_COLUMNS: Final = (
    "name,type,messages_ready,messages_unacknowledged,consumers,state,arguments,policy,"
    "effective_policy_definition,message_stats"
)

_HOUR_S: Final = 3_600
_STEP_S: Final = 60


@dataclass(frozen=True, slots=True)
class RabbitQueue:
    """One queue.

    Attributes:
        ready: Messages ready for delivery.
        unacknowledged: Messages delivered and not settled.
        per_s_in: Published per second; per_s_out: acknowledged per second; both as the broker averages them.
        dead_letter_exchange: Exchange of rejected messages; empty if they are discarded.
        is_dead_letter_queue: Named like a dead-letter queue of conquiet, or bound as one.
    """

    name: str
    kind: str
    state: str
    ready: int
    unacknowledged: int
    consumers: int
    per_s_in: float
    per_s_out: float
    dead_letter_exchange: str
    dead_letter_routing_key: str
    is_dead_letter_queue: bool


@dataclass(frozen=True, slots=True)
class RabbitQueueHistory:
    """The last hour of a queue, oldest first, from the samples of the broker. conquiet stores nothing.

    Attributes:
        depth: Messages in the queue, ready and unacknowledged.
        published: Messages published in each step; acknowledged: messages acknowledged.
        step_s: Length of a step.
    """

    name: str
    depth: tuple[int, ...]
    published: tuple[int, ...]
    acknowledged: tuple[int, ...]
    step_s: int


@dataclass(frozen=True, slots=True)
class RabbitQueuePage:
    """A page of queues in order of their names, with totals."""

    queues: tuple[RabbitQueue, ...]
    page: int
    pages: int
    total: int
    version: str


class RabbitView:
    """One vhost of one broker.

    Args:
        url: AMQP URL, with the vhost.
        api_url: Management API; by default port 15672 of the same host.
    """

    def __init__(self, url: str, api_url: str = "") -> None:
        self.url = url
        self.api_url = api_url or default_api_url(url)
        self._api = RabbitApi(self.api_url)
        self._vhost = vhost_of(url)

    def dead_letters(self, queue: str) -> "RabbitDeadLetters":
        """Return the messages of a dead-letter queue, to list, replay and discard. Needs the extra ``rabbit``."""
        from conquiet.rabbit import RabbitDeadLetters

        return RabbitDeadLetters(self.url, queue, management_url=self.api_url)

    def list_queues(self, *, page: int = 1, name: str = "") -> RabbitQueuePage:
        """Return one page of the queues with ``name`` in their names.

        Raises:
            RabbitApiError: The broker refused the request or cannot be reached.
        """
        query = {"page": max(1, page), "page_size": _PER_PAGE, "columns": _COLUMNS, "sort": "name"}
        if name:
            query |= {"name": name, "use_regex": "false"}
        reply = self._api.get(f"/api/queues/{quote(self._vhost, safe='')}?{urlencode(query)}")
        rows = reply.get("items", [])
        targets = {queue_setting(row, "dead-letter-routing-key") for row in rows if has_dead_letter_exchange(row)}
        return RabbitQueuePage(
            tuple(_queue(row, targets) for row in rows),
            page=int(reply.get("page", 1)),
            pages=int(reply.get("page_count", 1)),
            total=int(reply.get("filtered_count", len(rows))),
            version=self._api.version(),
        )

    def history(self, name: str) -> RabbitQueueHistory | None:
        """Return the last hour of a queue, as sampled by the broker; None if the queue does not exist.

        Raises:
            RabbitApiError: The broker refused the request or cannot be reached.
        """
        ages = {"lengths_age": _HOUR_S, "lengths_incr": _STEP_S, "msg_rates_age": _HOUR_S, "msg_rates_incr": _STEP_S}
        columns = "name,messages_details,messages_ready_details,message_stats"
        query = urlencode({**ages, "columns": columns})
        path = f"/api/queues/{quote(self._vhost, safe='')}/{quote(name, safe='')}?{query}"
        row = self._api.request("GET", path, missing_ok=True)
        if row is None:
            return None
        stats = row.get("message_stats") or {}
        return RabbitQueueHistory(
            name,
            depth=_samples(row.get("messages_details")),
            published=_increments(_samples(stats.get("publish_details"))),
            acknowledged=_increments(_samples(stats.get("ack_details"))),
            step_s=_STEP_S,
        )


def select_deliveries(*, message_id: str, source: str) -> "DeliveryFilter":
    """Return the filter of dead letters by message id and by source queue; an empty text selects all."""
    from conquiet.rabbit import DeliveryFilter

    return DeliveryFilter(message_id=message_id or None, source=source or None)


def _samples(details: Any) -> tuple[int, ...]:
    """Return the samples of one value, oldest first; empty if the broker keeps none."""
    found = (details or {}).get("samples") or []
    return tuple(int(one.get("sample") or 0) for one in sorted(found, key=lambda one: one.get("timestamp", 0)))


def _increments(totals: tuple[int, ...]) -> tuple[int, ...]:
    """Return the growth of a counter in each step. The counters of a restarted broker begin at 0."""
    return tuple(max(0, after - before) for before, after in pairwise(totals))


def _queue(row: dict[str, Any], targets: set[Any]) -> RabbitQueue:
    """Return one queue. ``targets`` are the names of queues that others dead-letter into."""
    name = str(row["name"])
    exchange = queue_setting(row, "dead-letter-exchange") or ""
    stats = row.get("message_stats") or {}
    return RabbitQueue(
        name=name,
        kind=str(row.get("type") or queue_setting(row, "queue-type") or "classic"),
        state=str(row.get("state") or "running"),
        ready=int(row.get("messages_ready") or 0),
        unacknowledged=int(row.get("messages_unacknowledged") or 0),
        consumers=int(row.get("consumers") or 0),
        per_s_in=_rate(stats, "publish_details"),
        per_s_out=_rate(stats, "ack_details"),
        dead_letter_exchange=str(exchange) or ("(default)" if has_dead_letter_exchange(row) else ""),
        dead_letter_routing_key=str(queue_setting(row, "dead-letter-routing-key") or ""),
        is_dead_letter_queue=name in targets or name.endswith((".dead", ".dlq", "-dlq")),
    )


def _rate(stats: dict[str, Any], name: str) -> float:
    return float((stats.get(name) or {}).get("rate") or 0.0)
