"""Wrap handlers in a transaction with an inbox, for the engines that import no database.

    runtime.Consumer     handler=for_runtime(handle, engine=…)
    Processor            @processor.handler("paid") … for_processor(handle, engine=…)
    RabbitConsumer       syncer=for_rabbit(handle, engine=…)

``engine`` decides which session the handler gets and whether it is ``async def``; see ``session_source``. A plain
function is run in a thread by those engines, because a transaction blocks; an ``async def`` one runs on the event loop.

The engine acknowledges when the handler returns, so the commit comes first. Errors are raised unchanged. After each of
them, also ``CommitUnknownError``, the message is not acknowledged: it is delivered again, and the inbox decides.

The group, or the queue, comes from the engine that runs the handler. It is a part of the inbox key: with two services
that use the same name by mistake, each would skip messages of the other as duplicates.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from conquiet.core.deduplicator import Deduplicator, require_deduplicator
from conquiet.core.functions import (
    mark_made_for,
    mark_pool_capacity,
    reject_generator_function,
    require_arguments,
    require_plain_function,
    wrong_place,
)
from conquiet.core.log import FactLogger
from conquiet.core.threads import run_without_loop
from conquiet.core.validation import require_text
from conquiet.errors import ConfigurationError, ConflictError
from conquiet.transactional.cancelled_jobs import cancellable
from conquiet.transactional.inbox import Inbox
from conquiet.transactional.inbox_keys import KeyFunction
from conquiet.transactional.received_messages import ReceivedFromRabbit, ReceivedMessage
from conquiet.transactional.schema import INBOX_TABLE
from conquiet.transactional.session_source import AsyncSource, SyncSource, source_of

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
    from sqlalchemy.orm import sessionmaker

    from conquiet.processor.context import JobContext, SyncJobContext
    from conquiet.runtime.context import MessageContext, SyncMessageContext
    from conquiet.runtime.message import RuntimeMessage

logger = FactLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


def effect_once(
    engine: "Engine | sessionmaker[Any]", inbox: str | Deduplicator, msg: Any, work: Callable[[Any], object]
) -> bool:
    """Run ``work(session)`` in a new transaction unless the message has had its effect. True if it ran.

    When this returns, the effect is committed, now or before: acknowledge.

    Args:
        engine: The database.
        inbox: An ``Inbox``, a ``LeaseCheck``, or the name of the inbox table.
        msg: The message; see ``Inbox.once``.
        work: Called with a ``DbSession``, or with a ``Session`` if ``engine`` is a ``sessionmaker``.
    """
    source = source_of(engine)
    if isinstance(source, AsyncSource):
        raise ConfigurationError("engine is asynchronous: call 'await effect_once_async(engine, inbox, msg, work)'")
    return run_without_loop(source.effect_once(inbox_of(inbox, None), msg, partial(source.call, work)))


async def effect_once_async(
    engine: "AsyncEngine | async_sessionmaker[Any]",
    inbox: str | Inbox,
    msg: Any,
    work: Callable[[Any], Awaitable[object]],
) -> bool:
    """Do what ``effect_once`` does, with ``await work(session)`` on an ``AsyncConnection`` or ``AsyncSession``."""
    source = source_of(engine)
    if isinstance(source, SyncSource):
        raise ConfigurationError("engine is synchronous: call 'effect_once(engine, inbox, msg, work)'")
    return await source.effect_once(inbox_of(inbox, None), msg, partial(source.call, work))


@overload
def for_runtime(
    handler: "Callable[[RuntimeMessage, Any], Awaitable[object]]",
    *,
    engine: "AsyncEngine | async_sessionmaker[Any]",
    group: str | None = None,
    inbox: str | Deduplicator = INBOX_TABLE,
    key: KeyFunction | None = None,
) -> "Callable[[RuntimeMessage, MessageContext], Awaitable[None]]": ...


@overload
def for_runtime(
    handler: "Callable[[RuntimeMessage, Any], object]",
    *,
    engine: "Engine | sessionmaker[Any]",
    group: str | None = None,
    inbox: str | Deduplicator = INBOX_TABLE,
    key: KeyFunction | None = None,
) -> "Callable[[RuntimeMessage, SyncMessageContext], None]": ...


def for_runtime(
    handler: "Callable[[RuntimeMessage, Any], Any]",
    *,
    engine: Any,
    group: str | None = None,
    inbox: str | Deduplicator = INBOX_TABLE,
    key: KeyFunction | None = None,
) -> Callable[..., Any]:
    """Return a handler for ``runtime.Consumer`` that runs ``handler(message, session)`` once per message.

    Before the commit the lease is checked, which costs no round trip: the engine's heartbeat knows its state.

    Args:
        handler: Does the work with the session it is given.
        engine: ``Engine`` or ``sessionmaker`` for a plain function, ``AsyncEngine`` or ``async_sessionmaker`` for an
            ``async def``; see ``session_source``.
        group: Not needed: the consumer's group is taken. A name that is not the consumer's is refused.
        inbox: An ``Inbox``, a ``LeaseCheck`` around one (plain functions only), or the name of the inbox table.
        key: See ``Inbox``; called with an object that has ``payload`` and ``id``. Not allowed with an inbox object.

    Raises:
        ConfigurationError: An argument is wrong. A ``group`` that disagrees is refused when the consumer is made, at
            the latest with the first message and before the handler is called.
    """
    source = checked_source(handler, engine, "message", "session")
    once = inbox_of(inbox, key)

    async def handle(message: "RuntimeMessage", ctx: "MessageContext | SyncMessageContext") -> None:
        received = ReceivedMessage.of_message(message, agreed("group", group, ctx.group))
        await source.effect_once(once, received, partial(source.call, handler, message), ctx.check_lease)

    return made_for("group", group, source, source.entry_point(handle))


@overload
def for_processor(
    handler: "Callable[[JobContext, Any], Awaitable[object]]",
    *,
    engine: "AsyncEngine | async_sessionmaker[Any]",
    group: str | None = None,
    inbox: str | Deduplicator = INBOX_TABLE,
    key: KeyFunction | None = None,
) -> "Callable[[JobContext], Awaitable[object]]": ...


@overload
def for_processor(
    handler: "Callable[[SyncJobContext, Any], object]",
    *,
    engine: "Engine | sessionmaker[Any]",
    group: str | None = None,
    inbox: str | Deduplicator = INBOX_TABLE,
    key: KeyFunction | None = None,
) -> "Callable[[SyncJobContext], object]": ...


def for_processor(
    handler: Callable[[Any, Any], Any],
    *,
    engine: Any,
    group: str | None = None,
    inbox: str | Deduplicator = INBOX_TABLE,
    key: KeyFunction | None = None,
) -> Callable[..., Any]:
    """Return a handler for ``Processor`` that runs ``handler(ctx, session)`` once per message.

    The key is the id of the message, not of the entry: a retry is a new entry. So if an attempt committed but counts as
    failed (a timeout, a lost reply to COMMIT), the next attempt finds its row.

    An id that you give to ``emit`` yourself must not be used for another message while the inbox remembers the first,
    which is longer than ``emit`` does (``dedupe_window_s``): the second message would count as done. An envelope
    without an id gets the id of its first entry. Such an id can be reused, so a digest of event and data is stored with
    it.

    Args:
        handler: Does the work with the session it is given.
        engine: ``Engine`` or ``sessionmaker`` for a plain function, ``AsyncEngine`` or ``async_sessionmaker`` for an
            ``async def``; see ``session_source``.
        group: Not needed: the processor's group is taken. A name that is not the processor's is refused.
        inbox: An ``Inbox``, a ``LeaseCheck`` around one (plain functions only), or the name of the inbox table.
        key: See ``Inbox``; called with an object that has ``payload`` (the job's data) and ``id``. Not allowed with an
            inbox object.

    Raises:
        ConfigurationError: An argument is wrong. A ``group`` that disagrees is refused when the handler is registered,
            at the latest with the first message and before the handler is called.
    """
    source = checked_source(handler, engine, "ctx", "session")
    once = inbox_of(inbox, key)

    def received(ctx: "JobContext") -> ReceivedMessage:
        return ReceivedMessage.of_job(ctx, agreed("group", group, ctx.group))

    return made_for("group", group, source, cancellable(source, once, received, handler))


@overload
def for_rabbit(
    handler: Callable[[Any, Any], Awaitable[bool | None]],
    *,
    engine: "AsyncEngine | async_sessionmaker[Any]",
    queue: str | None = None,
    key: Callable[[Any], str] | None = None,
    inbox: str | Deduplicator = INBOX_TABLE,
) -> Callable[[Any], Awaitable[bool]]: ...


@overload
def for_rabbit(
    handler: Callable[[Any, Any], bool | None],
    *,
    engine: "Engine | sessionmaker[Any]",
    queue: str | None = None,
    key: Callable[[Any], str] | None = None,
    inbox: str | Deduplicator = INBOX_TABLE,
) -> Callable[[Any], bool]: ...


def for_rabbit(
    handler: Callable[[Any, Any], Any],
    *,
    engine: Any,
    queue: str | None = None,
    key: Callable[[Any], str] | None = None,
    inbox: str | Deduplicator = INBOX_TABLE,
) -> Callable[[Any], Any]:
    """Return a syncer for ``RabbitConsumer`` that runs ``handler(message, session)`` once per message.

    If the handler returns False, its transaction is rolled back, and the message is requeued or dead-lettered. A
    conflict in the handler's statements has the same result. Give the queue a dead-letter exchange: the second
    consecutive refusal goes there.

    A conflict on the inbox row means that another run of the message has not ended: ``Postpone`` is raised, and no
    attempt is counted. An ``InfrastructureError`` (the database is unavailable, the result of a COMMIT is unknown) is
    raised to the consumer. Any other error stops the consumer.

    Args:
        handler: Does the work. Returning nothing means done.
        engine: ``Engine`` or ``sessionmaker`` for a plain function, ``AsyncEngine`` or ``async_sessionmaker`` for an
            ``async def``; see ``session_source``.
        queue: Not needed: the queue of the consumer is taken. A name that is not the consumer's is refused.
        key: Chooses what identifies a message, from the message. None takes the AMQP property ``message_id``, which
            the publisher sets and a replay keeps (a relay sets it to the outbox id). A message without one raises
            ``MessageKeyError``: AMQP numbers deliveries, not messages, so there is nothing to guess from.
        inbox: An ``Inbox``, a ``LeaseCheck`` around one (plain functions only), or the inbox table's name. The key
            function of an ``Inbox`` is called with an object that has ``payload`` (the message) and ``id`` (the
            property ``message_id``).

    Raises:
        ConfigurationError: An argument is wrong. A ``queue`` that disagrees is refused when the consumer is made, at
            the latest with the first message and before the handler is called.
    """
    source = checked_source(handler, engine, "message", "session")
    once = inbox_of(inbox, of_payload(key))

    async def syncer(message: Any) -> bool:
        received = ReceivedFromRabbit.current(message, lambda actual: agreed("queue", queue, actual), queue)
        is_started = False

        async def work(session: Any) -> None:
            nonlocal is_started
            is_started = True
            if await source.call(handler, message, session) is False:
                raise _RollBackError

        try:
            await source.effect_once(once, received, work)
        except _RollBackError:
            return False
        except ConflictError as error:
            logger.failure(logging.WARNING, "message left for another delivery", error, queue=received.source)
            if is_started:
                return False
            # Another run of the message holds its inbox row. Counted as an attempt, the message would be dead-lettered
            # while that run commits.
            from conquiet.rabbit.syncer import Postpone

            raise Postpone from error
        return True

    return made_for("queue", queue, source, source.entry_point(syncer))


class _RollBackError(Exception):
    """The handler returned False: roll back."""


def checked_source(handler: Callable[..., Any], engine: object, *arguments: str) -> SyncSource | AsyncSource:
    """Return the source of sessions for a handler; raise if the handler does not fit it."""
    source = source_of(engine)
    if not callable(handler):
        raise ConfigurationError("handler must be a function")
    reject_generator_function("handler", handler)
    source.require_handler(handler)
    require_arguments("handler", handler, *arguments)
    return source


def inbox_of(inbox: str | Deduplicator, key: KeyFunction | None) -> Deduplicator:
    """Return the inbox for an argument ``inbox``."""
    if isinstance(inbox, str):
        return Inbox(inbox, key=key)
    require_deduplicator(inbox, hint=", or the name of the inbox table")
    if key is not None:
        raise ConfigurationError("give the key function to the Inbox, or the name of its table beside it: not both")
    return inbox


def of_payload(key: Callable[[Any], str] | None) -> KeyFunction | None:
    """Return the key function of an inbox for a function of the message alone."""
    if key is None:
        return None
    require_plain_function("key", key)
    return lambda known: key(known.payload)


def made_for(kind: str, given: str | None, source: SyncSource | AsyncSource, function: F) -> F:
    """Mark a function with the facts that its engine checks at the start: the configured name and the pool size."""
    mark_pool_capacity(function, source.capacity)
    if given is not None:
        mark_made_for(function, require_text(kind, given))
    return function


def agreed(kind: str, given: str | None, actual: str) -> str:
    """Return the group or queue of the engine; raise if another was given."""
    # The engine checks only its own handler. This handler may be called by a function of the user.
    if given is not None and given != actual:
        raise wrong_place(kind, given, actual)
    return actual
