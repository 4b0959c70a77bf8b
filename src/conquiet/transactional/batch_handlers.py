"""Batch handlers with a transaction and an inbox, for the engines that know no database.

    runtime.Consumer   handler=for_runtime_batch(handle, engine=…), batch=200
    Processor          @processor.handler("paid", batch=200) … for_processor_batch(handle, engine=…)
    RabbitConsumer     syncer=for_rabbit_batch(handle, engine=…), batch=200

One transaction for all messages of a batch: one inbox statement, one COMMIT, one acknowledgement. Messages that have
had their effect are not in the list that the handler gets. An error rolls everything back; the message that fails is
then found by halving, in savepoints of a second transaction (``batch_source``), and the engine settles it alone. A
message with a lost lease is removed before the COMMIT.

``for_processor_shared_transaction`` is for handlers of single messages. Each call runs in a savepoint of one
transaction. A call that raises is rolled back to its savepoint, and its message is settled alone.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from conquiet.errors import ConfigurationError
from conquiet.transactional.batch_source import Batches
from conquiet.transactional.cancelled_jobs import InboxCancellation
from conquiet.transactional.handlers import agreed, checked_source, inbox_of, made_for, of_payload
from conquiet.transactional.inbox import Inbox
from conquiet.transactional.inbox_keys import KeyFunction
from conquiet.transactional.received_messages import ReceivedFromRabbit, ReceivedMessage
from conquiet.transactional.schema import INBOX_TABLE

if TYPE_CHECKING:
    from conquiet.processor.context import JobContext
    from conquiet.runtime.context import MessageContext
    from conquiet.runtime.message import RuntimeMessage


def for_processor_batch(
    handler: "Callable[[list[Any], Any], Any]",
    *,
    engine: Any,
    group: str | None = None,
    inbox: "str | Inbox" = INBOX_TABLE,
    key: KeyFunction | None = None,
) -> Callable[..., Any]:
    """Return a batch handler for ``Processor`` that runs ``handler(contexts, session)`` once per message.

    Args:
        handler: Does the work of all its messages with the session it is given: with statements that write many rows.
        engine: ``Engine`` or ``sessionmaker`` for a plain function, ``AsyncEngine`` or ``async_sessionmaker`` for an
            ``async def``; see ``session_source``.
        group: Not needed: the processor's group is taken. A name that is not the processor's is refused.
        inbox: An ``Inbox``, or the name of the inbox table.
        key: See ``Inbox``; called with an object that has ``payload`` (the job's data) and ``id``.

    Raises:
        ConfigurationError: An argument is wrong.
    """
    batches = _batches(handler, engine, inbox, key, "contexts", "session")

    def work_of(contexts: "list[JobContext]") -> Callable[[Any, list[int]], Any]:
        return lambda session, new: batches.source.call(handler, [contexts[one] for one in new], session)

    return _of_processor(batches, group, batches.run_batch, work_of)


def for_processor_shared_transaction(
    handler: "Callable[[Any, Any], Any]",
    *,
    engine: Any,
    group: str | None = None,
    inbox: "str | Inbox" = INBOX_TABLE,
    key: KeyFunction | None = None,
) -> Callable[..., Any]:
    """Return a batch handler for ``Processor`` that runs ``handler(ctx, session)`` for each message, in a savepoint.

    All of them share one transaction. A handler is safe for that if it does nothing outside of the session that must
    not be repeated: when the transaction as a whole fails, all of them run again. For the arguments see
    ``for_processor_batch``.
    """
    batches = _batches(handler, engine, inbox, key, "ctx", "session")

    def work_of(contexts: "list[JobContext]") -> Callable[[Any, int], Any]:
        return lambda session, one: batches.source.call(handler, contexts[one], session)

    return _of_processor(batches, group, batches.run_each, work_of)


def _of_processor(
    batches: Batches,
    group: str | None,
    run: Callable[..., Coroutine[Any, Any, object]],
    work_of: "Callable[[list[JobContext]], Callable[[Any, Any], Any]]",
) -> Callable[..., Any]:
    def of_one(ctx: "JobContext") -> ReceivedMessage:
        return ReceivedMessage.of_job(ctx, agreed("group", group, ctx.group))

    async def handle(contexts: "list[JobContext]") -> object:
        place = agreed("group", group, contexts[0].group)  # all of one processor
        received = [ReceivedMessage.of_job(ctx, place) for ctx in contexts]
        return await run(received, work_of(contexts), lambda: _check_leases([ctx.delivery for ctx in contexts]))

    entry_point = batches.source.entry_point(handle)
    if isinstance(batches.inbox, Inbox):
        InboxCancellation(batches.source, batches.inbox, of_one).add_to(entry_point)
    return made_for("group", group, batches.source, entry_point)


def for_runtime_batch(
    handler: "Callable[[list[RuntimeMessage], Any], Any]",
    *,
    engine: Any,
    group: str | None = None,
    inbox: "str | Inbox" = INBOX_TABLE,
    key: KeyFunction | None = None,
) -> Callable[..., Any]:
    """Return a batch handler for ``runtime.Consumer`` that runs ``handler(messages, session)`` once per message.

    For the arguments see ``for_processor_batch``.
    """
    batches = _batches(handler, engine, inbox, key, "messages", "session")

    async def handle(messages: "list[RuntimeMessage]", contexts: "Sequence[MessageContext]") -> object:
        place = agreed("group", group, contexts[0].group)
        received = [ReceivedMessage.of_message(message, place) for message in messages]

        def work(session: Any, new: list[int]) -> Any:
            return batches.source.call(handler, [messages[one] for one in new], session)

        return await batches.run_batch(received, work, lambda: _check_leases(contexts))

    return made_for("group", group, batches.source, batches.source.entry_point(handle))


def for_rabbit_batch(
    handler: "Callable[[list[Any], Any], Any]",
    *,
    engine: Any,
    queue: str | None = None,
    key: Callable[[Any], str] | None = None,
    inbox: "str | Inbox" = INBOX_TABLE,
) -> Callable[[list[Any]], Any]:
    """Return a batch syncer for ``RabbitConsumer(…, batch=200)`` that runs ``handler(messages, session)`` once each.

    A handler that returns False has its transaction rolled back, and the failing message is found by halving and then
    requeued or dead-lettered. For the arguments see ``for_rabbit``.
    """
    batches = _batches(handler, engine, inbox, of_payload(key), "messages", "session")

    async def syncer(messages: list[Any]) -> object:
        from conquiet.rabbit.batch_results import RefusedError, only_deliveries

        async def work(session: Any, new: list[int]) -> object:
            with only_deliveries(new):
                result = await batches.source.call(handler, [messages[one] for one in new], session)
            if result is False:
                raise RefusedError
            return result

        try:
            return await batches.run_batch(_received(messages, queue), work, _no_check) or True
        except RefusedError:
            return False

    return made_for("queue", queue, batches.source, batches.source.entry_point(syncer))


def _received(messages: list[Any], queue: str | None) -> list[ReceivedFromRabbit]:
    from conquiet.rabbit.batch_results import current_deliveries

    deliveries = current_deliveries()
    place = agreed("queue", queue, deliveries[0].queue)
    return [ReceivedFromRabbit(place, message, one) for message, one in zip(messages, deliveries, strict=True)]


def _no_check() -> None:
    """Do nothing: RabbitMQ keeps a delivery from others as long as its channel is open."""


def _batches(handler: Callable[..., Any], engine: Any, inbox: Any, key: KeyFunction | None, *arguments: str) -> Batches:
    source = checked_source(handler, engine, *arguments)
    if not source.takes_batches:
        raise ConfigurationError(
            "a batch handler cannot have a DjangoTransaction: use a sqlalchemy Session, or handle single messages"
        )
    once: Any = inbox_of(inbox, key)
    if not callable(getattr(once, "once_many", None)):
        raise ConfigurationError(
            f"a batch needs an Inbox(), or the name of its table: a {type(once).__name__} has no once_many()"
        )
    return Batches(source, once)


def _check_leases(deliveries: "Sequence[MessageContext]") -> None:
    """Raise ``LeaseLostError`` unless all messages are certainly still ours. The engine takes out the others."""
    for delivery in deliveries:
        delivery.check_lease()
