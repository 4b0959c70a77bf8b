"""Record each COMMIT and each acknowledgement that a worker sends to its servers.

    note_commits(record)                    in the process, before its first transaction
    note_stream_acks(record, pack)          Redis
    note_queue_acks(record)                 RabbitMQ
    note_app_handlers(around)               an App, whose handlers run inside its transactions
    …
    handle(17)                              the transactions that follow in this thread or task are of message 17

The records are made at the edge of the process: below SQLAlchemy for the database, where the packet is made for Redis
and RabbitMQ. They do not depend on the state of the library. The format is described in docs/history-format.md.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Any
from weakref import WeakKeyDictionary

from tests.invariants.recorder import Recorder

# Only what is used is imported, inside the functions: most storms have no database, or no RabbitMQ.
Patch = Callable[[Any, str, Any], None]

_handled: ContextVar[dict[str, Any] | None] = ContextVar("handled", default=None)


@dataclass(slots=True)
class _Tags:
    """Deliveries of one channel of RabbitMQ.

    Attributes:
        handled: Handed to a handler and not acknowledged, by tag.
        settled: Acknowledged one by one before a handler had them.
        up_to: All up to this tag are acknowledged.
        record: Writes the history; None before the first acknowledgement.
    """

    handled: dict[int, Any] = field(default_factory=dict)
    settled: set[int] = field(default_factory=set)
    up_to: int = 0
    record: Recorder | None = None


_tags: WeakKeyDictionary[Any, _Tags] = WeakKeyDictionary()


def handle(*ids: Any, of: str = "") -> None:
    """Set the messages that the next transactions of this thread or task belong to."""
    fields: dict[str, Any] = {"id": ids[0]} if len(ids) == 1 and not isinstance(ids[0], list) else {"ids": list(ids)}
    _handled.set(fields | ({"of": of} if of else {}))


def note_commits(record: Recorder, patch: Patch = setattr) -> None:
    """Record each COMMIT that was sent, and whether the database has replied."""
    from sqlalchemy.engine.default import DefaultDialect

    from conquiet.db import commit_status, session
    from conquiet.transactional import async_transaction

    do_commit: Any = DefaultDialect.do_commit
    after_lost_reply = commit_status.after_lost_reply

    def commit(self: Any, dbapi_connection: Any) -> None:
        fields = _handled.get()
        try:
            do_commit(self, dbapi_connection)
        except Exception:
            # The library may continue without a reply if the transaction has written nothing: a duplicate's.
            if fields is not None:
                record("commit", **fields, unanswered=True)
            raise
        if fields is not None:
            record("commit", **fields)

    def resolve(status: commit_status.CommitStatus, unknown: Any) -> Any:
        fields = _handled.get()
        if fields is not None and status is commit_status.CommitStatus.COMMITTED:
            record("commit", **fields)
        return after_lost_reply(status, unknown)

    patch(DefaultDialect, "do_commit", commit)
    for module in (session, async_transaction):
        patch(module, "after_lost_reply", resolve)


def note_stream_acks(record: Recorder, pack: Callable[[list[Any]], list[Any]], patch: Patch = setattr) -> None:
    """Note what each XACK of an engine is for. ``pack`` returns the ids of these messages in the history."""
    from conquiet.runtime.acknowledger import AckBatch

    make: Any = AckBatch.__init__

    def made(self: Any, messages: list[Any], *arguments: Any) -> None:
        record("ack", ids=pack(messages))
        make(self, messages, *arguments)

    patch(AckBatch, "__init__", made)


def note_queue_acks(record: Recorder, patch: Patch = setattr) -> None:
    """Note what each basic.ack is for, by the tags of what was ``delivered``."""
    from conquiet.rabbit.connection import Link

    ack = Link.ack

    def sent(self: Any, *, up_to: int | None = None, singles: tuple[int, ...] = ()) -> bool:
        tags = _tags.setdefault(self, _Tags())
        tags.record, tags.up_to = record, max(tags.up_to, up_to or 0)
        tags.settled.update(tag for tag in singles if tag not in tags.handled)
        settled = [tag for tag in tags.handled if tag in singles or tag <= tags.up_to]
        if settled:
            record("ack", ids=[tags.handled.pop(tag) for tag in settled])
        return ack(self, up_to=up_to, singles=singles)

    patch(Link, "ack", sent)


def note_app_handlers(around: Callable[[Any], AbstractContextManager[None]], patch: Patch = setattr) -> None:
    """Run each handler of an App inside ``around(message)``, which is entered before its transaction begins.

    The handler itself does not know of a duplicate: its transaction ends without it.
    """
    from conquiet.app.invocation import Invocation, like

    def noting(make: Callable[[Any], Callable[[Any], Any]]) -> Callable[[Any], Callable[[Any], Any]]:
        def made(self: Any) -> Callable[[Any], Any]:
            inner = make(self)
            if iscoroutinefunction(inner):

                async def outer_async(message: Any) -> Any:
                    with around(message):
                        return await inner(message)

                return like(inner, outer_async)

            def outer(message: Any) -> Any:
                with around(message):
                    return inner(message)

            return like(inner, outer)

        return made

    for name in ("for_processor", "for_rabbit"):
        patch(Invocation, name, noting(getattr(Invocation, name)))


def delivered(number: Any) -> None:
    """Note the tag of the delivery that RabbitMQ's consumer is handling."""
    from conquiet.rabbit import current_delivery

    delivery = current_delivery()
    tags = _tags.setdefault(delivery.session.link, _Tags())
    if tags.record is not None and (delivery.tag <= tags.up_to or delivery.tag in tags.settled):
        tags.record("ack", id=number)  # before its handler: it is not committed now, either
    else:
        tags.handled[delivery.tag] = number
