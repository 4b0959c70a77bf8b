"""Access dead letters of a Redis stream and of a RabbitMQ queue through one interface."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from conquiet.cli.connections import call_redis, check_broker
from conquiet.cli.errors import CommandError
from conquiet.cli.output import moment
from conquiet.cli.settings import RABBIT, RABBIT_API, RabbitApiUrl, RabbitUrl, RedisUrl, find_api_url, require_url

if TYPE_CHECKING:
    from conquiet.processor import DeadFilter, DeadMessage
    from conquiet.rabbit import DeadDelivery, DeliveryFilter

T = TypeVar("T")
Row = dict[str, Any]

_PAGE: Final = 200
_MOST_SHOWN: Final = 10
_LIFT: Final = (
    "remove the limit of the queue (from RabbitMQ 4.0 on by a policy with delivery-limit -1, which applies "
    "immediately, but not against an argument of the queue), or move all to one without: replay --all --to QUEUE"
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The filters of the command line; an empty filter matches everything."""

    event: Annotated[str, typer.Option(help="Only messages of this event.")] = ""
    error: Annotated[
        str, typer.Option("--error", help="Only messages with this error or reason, as printed by 'causes'.")
    ] = ""
    source: Annotated[str, typer.Option(help="With --rabbit: only messages dead-lettered from this queue.")] = ""
    group: Annotated[str, typer.Option(help="Only messages dead-lettered in this consumer group (Redis).")] = ""
    only: str = ""

    @property
    def filters(self) -> bool:
        """True if any filter was given."""
        return self != Selection()

    def choose(self, only: str, *, everything: bool) -> "Selection":
        """Return the selection with an id. Reject a command with neither a filter nor --all, or with both."""
        chosen = replace(self, only=only)
        if everything == chosen.filters:
            raise CommandError(
                "choose the dead letters",
                fix="give --id, --error, --event, --group or (with --rabbit) --source, or --all alone",
            )
        return chosen


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options of the command line that lead to the dead letters."""

    redis_url: RedisUrl = ""
    rabbit_url: RabbitUrl = ""
    rabbit_api: RabbitApiUrl = ""
    count_a_delivery: Annotated[
        bool,
        typer.Option("--count-a-delivery", help="With --rabbit: peek even if that counts toward the delivery limit."),
    ] = False


@dataclass(frozen=True, slots=True)
class StreamSource:
    """The dead letters of a stream of the processor.

    Attributes:
        columns: Columns of a list.
        cause_columns: What ``causes`` shows.
        unreplayable: Why a replay skips some, and how to proceed.
    """

    columns = ("id", "event", "group", "reason", "error", "attempts", "died")
    cause_columns = ("event", "error", "count", "first", "last", "example")
    unreplayable = "no messages in the first place, or of a group that is not there (give --to GROUP); they stay"

    servers: ServerOptions
    stream: str

    def run(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Run ``await work(dead_letters)`` with the ``DeadLetters`` of this broker."""

        async def run(client: Any) -> T:
            from conquiet.processor.partitioned_dead_letters import PartitionedDeadLetters

            return await work(PartitionedDeadLetters(client, self.stream))

        return call_redis(self.servers.redis_url, run)

    def where(self, selection: Selection) -> "DeadFilter":
        """Return the filter."""
        from conquiet.processor import DeadFilter

        if selection.source:
            raise CommandError("--source is for RabbitMQ", fix="give --rabbit too, or --group for a Redis stream")
        return DeadFilter(
            id=selection.only or None,
            event=selection.event or None,
            error_type=selection.error or None,
            group=selection.group or None,
        )

    def rows(self, selection: Selection, *, limit: int | None, show_payload: bool) -> list[Row]:
        """Return the oldest dead letters."""
        where = self.where(selection)

        async def read(dead_letters: Any) -> "list[DeadMessage]":
            found: list[DeadMessage] = []
            cursor: str | None = None
            page_size = _PAGE if limit is None else min(_PAGE, max(limit, 20))
            while limit is None or len(found) < limit:
                page = await dead_letters.list(cursor=cursor, limit=page_size, where=where)
                found += page.items
                cursor = page.cursor
                if cursor is None:
                    break
            return found[:limit]

        return [_message_row(one, show_payload=show_payload) for one in self.run(read)]

    def show(self, dead_id: str, *, show_payload: bool) -> tuple[Row, str]:
        """Return one dead letter with its history; the traceback comes last."""
        found: DeadMessage | None = self.run(lambda dead_letters: dead_letters.show(dead_id))
        if found is None:
            raise CommandError(
                f"stream {self.stream} has no dead letter {dead_id}",
                fix=f"see them with: conquiet dead-letters list {self.stream}",
            )
        record = found.record
        history = {
            "message_id": record.id,
            "entry_id": record.entry_id,
            "deliveries": record.deliveries,
            "host": record.host,
            "consumer": record.consumer,
            "error_text": record.error,
            "traceback": record.traceback,
        }
        return _message_row(found, show_payload=show_payload) | history, "traceback"

    def causes(self) -> list[Row]:
        """Return causes with their counts."""
        return [
            {"event": one.event, "error": one.error_type, "count": one.count, "example": one.example_id}
            | {"first": moment(one.first_ms), "last": moment(one.last_ms)}
            for one in self.run(lambda dead_letters: dead_letters.causes())
        ]

    def no_match(self) -> CommandError:
        """Return the error for a filter without matches: a mistyped filter must not look like success."""
        causes = self.causes()
        if not causes:
            return CommandError(f"stream {self.stream} has no dead letters", fix="check the name of the stream")
        there = [f"{one['count']} of event {one['event'] or '-'} by {one['error']}" for one in causes[:_MOST_SHOWN]]
        more = ["..."] if len(causes) > _MOST_SHOWN else []
        return CommandError(
            f"no dead letter of {self.stream} matches; there are: {', '.join(there + more)}",
            fix=f"see all with: conquiet dead-letters causes {self.stream}",
        )


@dataclass(frozen=True, slots=True)
class QueueSource:
    """The messages of a dead-letter queue of RabbitMQ; see :class:`StreamSource`."""

    columns = ("position", "message_id", "source", "reason", "count", "size_bytes")
    cause_columns = ("source", "reason", "count")
    unreplayable = "they do not name their queue and stay; give --to QUEUE"

    servers: ServerOptions
    queue: str

    def run(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Run ``await work(dead_letters)``; a queue that cannot be peeked safely is reported with a fix."""
        import asyncio

        servers = self.servers
        check_broker(servers.rabbit_url)
        from conquiet.rabbit import RabbitDeadLetters
        from conquiet.rabbit.peek_safety import PeekUnsafeError

        url = require_url(servers.rabbit_url, RABBIT)
        dead_letters = RabbitDeadLetters(
            url,
            self.queue,
            management_url=find_api_url(servers.rabbit_api, url),
            count_a_delivery=servers.count_a_delivery,
        )

        async def run() -> T:
            return await work(dead_letters)

        try:
            return asyncio.run(run())
        except PeekUnsafeError as error:
            allow = (
                f"give --count-a-delivery to peek anyway, or --rabbit-api (or ${RABBIT_API}) if the limit is not known"
            )
            fix = _LIFT if error.would_delete else "" if servers.count_a_delivery else allow
            raise CommandError(str(error), fix=fix) from error

    def where(self, selection: Selection) -> "DeliveryFilter":
        """Return the filter."""
        from conquiet.rabbit import DeliveryFilter

        if selection.event:
            raise CommandError("messages of RabbitMQ have no event", fix="give --source, --error or --id")
        if selection.group:
            raise CommandError("--group is for Redis streams", fix="give --source: the queue they died in")
        return DeliveryFilter(
            message_id=selection.only or None, source=selection.source or None, reason=selection.error or None
        )

    def rows(self, selection: Selection, *, limit: int | None, show_payload: bool) -> list[Row]:
        """Return the first dead letters."""
        where = self.where(selection)
        found = self.run(lambda dead_letters: dead_letters.list(limit=limit, where=where))
        return [_delivery_row(one, show_payload=show_payload) for one in found]

    def show(self, dead_id: str, *, show_payload: bool) -> tuple[Row, str]:
        """Return one message; its deaths come last."""
        found: DeadDelivery | None = self.run(lambda dead_letters: dead_letters.show(dead_id))
        if found is None:
            raise CommandError(
                f"queue {self.queue} has no dead letter {dead_id}",
                fix=f"see them with: conquiet dead-letters list {self.queue} --rabbit",
            )
        return _delivery_row(found, show_payload=show_payload), "deaths"

    def causes(self) -> list[Row]:
        """Return causes with their counts."""
        return [asdict(one) for one in self.run(lambda dead_letters: dead_letters.causes())]

    def no_match(self) -> CommandError:
        """Return an error without peeking, which may count as a delivery."""
        return CommandError(
            f"no dead letter of queue {self.queue} matches",
            fix=f"see them with: conquiet dead-letters causes {self.queue} --rabbit",
        )


def find_source(name: str, servers: ServerOptions, *, rabbit: bool) -> StreamSource | QueueSource:
    """Return the dead letters of a queue, if ``rabbit``, or of a stream."""
    return QueueSource(servers, name) if rabbit else StreamSource(servers, name)


def _message_row(dead: "DeadMessage", *, show_payload: bool) -> Row:
    record = dead.record
    row: Row = {
        "id": dead.id,
        "event": record.event,
        "group": record.group,
        "reason": record.reason,
        "error": record.error_type,
        "attempts": record.attempts,
        "died": moment(dead.died_ms),
    }
    return row | ({"payload": record.payload} if show_payload else {})


def _delivery_row(one: "DeadDelivery", *, show_payload: bool) -> Row:
    row = one.as_dict()
    body: bytes = row.pop("body")
    return row | ({"payload": body.decode("utf-8", "backslashreplace")} if show_payload else {})
