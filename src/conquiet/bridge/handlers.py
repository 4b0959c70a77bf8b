"""Handlers with a transaction and an inbox, for the engines that know no database.

    runtime.Consumer     handler=for_runtime(handle, engine=…, group=…)
    Processor            @processor.handler("paid") … for_processor(handle, engine=…, group=…)
    RabbitConsumer       syncer=for_rabbit(handle, engine=…, queue=…)

Each returns a plain function, which those engines run in a thread: a transaction blocks. The engine
acknowledges when it returns, so the commit comes first. An error leaves the message unacknowledged, and that
is right for ``CommitUnknownError`` too: it is delivered again, and the inbox decides.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Engine

from conquiet.bridge.fence import Once
from conquiet.bridge.inbox import Inbox
from conquiet.bridge.keys import InboxKey, KeyFunction
from conquiet.bridge.schema import INBOX_TABLE
from conquiet.db.session import DbSession
from conquiet.errors import CommitUnknownError, ConflictError, MessageKeyError
from conquiet.kernel.functions import refuse_awaitable, require_arguments, require_plain_function
from conquiet.kernel.validation import require_text

if TYPE_CHECKING:
    from conquiet.processor.context import SyncJobContext
    from conquiet.runtime.context import RuntimeMessage, SyncMessageContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Known:
    """A message with what the inbox asks for, whatever engine it came from. The payload is not shown."""

    source: str
    group: str
    id: str
    payload: Any = field(repr=False, default=None)


def effect_once(engine: Engine, inbox: Once, msg: Any, work: Callable[[DbSession], object]) -> bool:
    """Run ``work`` in a transaction of its own unless the message has had its effect. True if it ran.

    When this returns, the effect is committed, now or before: acknowledge.
    """
    with DbSession(engine) as session, inbox.once(session, msg) as first_time:
        if first_time:
            refuse_awaitable("the handler", work(session))  # before COMMIT: its row would say that it was done
    return first_time


def for_runtime(
    handler: "Callable[[RuntimeMessage, DbSession], object]",
    *,
    engine: Engine,
    group: str,
    inbox: str = INBOX_TABLE,
    key: KeyFunction | None = None,
) -> "Callable[[RuntimeMessage, SyncMessageContext], None]":
    """Return a handler for ``runtime.Consumer`` that runs ``handler(message, session)`` once per message.

    Before the commit the lease is looked at, which costs nothing here: the engine's heartbeat knows.

    Args:
        handler: Does the work with the session it is given.
        engine: Where sessions come from.
        group: The consumer's group; a message does not know it.
        inbox: Table of the inbox.
        key: See ``Inbox``; asked with something that has ``payload`` and ``id``.
    """
    require_plain_function("handler", handler)
    require_arguments("handler", handler, "message", "session")
    require_text("group", group)
    once = Inbox(inbox, key=key)

    def handle(message: "RuntimeMessage", ctx: "SyncMessageContext") -> None:
        def work(session: DbSession) -> object:
            session.before_commit(lambda _: ctx.check_lease())
            return handler(message, session)

        effect_once(engine, once, _Known(message.stream, group, message.id, message.data), work)

    return handle


def for_processor(
    handler: "Callable[[SyncJobContext, DbSession], object]",
    *,
    engine: Engine,
    group: str,
    inbox: str = INBOX_TABLE,
    key: KeyFunction | None = None,
) -> "Callable[[SyncJobContext], None]":
    """Return a handler for ``Processor`` that runs ``handler(ctx, session)`` once per message.

    The key is the message's id, not the entry's: a retry is a new entry. So an attempt that committed and was
    taken for failed (a timeout, a lost reply to COMMIT) is recognised by the next one.

    An id that you give to ``emit`` yourself must not be used for another message while the inbox remembers the first,
    which is longer than ``emit`` does (``dedupe_window_s``): the second one would count as done.

    Args:
        handler: Does the work with the session it is given.
        engine: Where sessions come from.
        group: The processor's group.
        inbox: Table of the inbox.
        key: See ``Inbox``; asked with something that has ``payload`` (the job's data) and ``id``.
    """
    require_plain_function("handler", handler)
    require_arguments("handler", handler, "ctx", "session")
    require_text("group", group)
    once = Inbox(inbox, key=key)

    def handle(ctx: "SyncJobContext") -> None:
        known = _Known(ctx.delivery.stream, group, ctx.id, ctx.data)
        effect_once(engine, once, known, lambda session: handler(ctx, session))

    return handle


def for_rabbit(
    handler: Callable[[Any, DbSession], bool | None],
    *,
    engine: Engine,
    queue: str,
    key: Callable[[Any], str] | None = None,
    inbox: str = INBOX_TABLE,
) -> Callable[[Any], bool]:
    """Return a syncer for ``RabbitConsumer`` that runs ``handler(message, session)`` once per message.

    A handler that returns False has its transaction rolled back, and the message is requeued or dead-lettered. A
    conflict and a commit of unknown fate are answered the same way: worth another delivery. Give the queue a
    dead-letter exchange: the second refusal in a row goes there. Any other error stops the consumer.

    Args:
        handler: Does the work. Returning nothing means done.
        engine: Where sessions come from.
        queue: The queue's name, part of the key.
        key: Chooses what a message is known by, from the message. None takes the AMQP property ``message_id``, which
            the publisher sets and a replay keeps (a relay sets it to the outbox id). A message without one raises
            ``MessageKeyError``: AMQP numbers deliveries, not messages, so there is nothing to guess from.
        inbox: Table of the inbox.
    """
    require_plain_function("handler", handler)
    require_arguments("handler", handler, "message", "session")
    require_text("queue", queue)
    chosen = key or _by_message_id()
    once = Inbox(inbox, key=lambda known: InboxKey(queue, "", chosen(known.payload)))

    class _RefusedError(Exception):
        pass

    def work_on(message: Any, session: DbSession) -> object:
        answer = handler(message, session)
        if answer is False:
            raise _RefusedError
        return answer

    def syncer(message: Any) -> bool:
        try:
            effect_once(engine, once, _Known(queue, "", "", message), lambda session: work_on(message, session))
        except _RefusedError:
            return False
        except (ConflictError, CommitUnknownError) as error:
            # Not acknowledged. If the commit did happen, the inbox says so at the next delivery.
            logger.warning("message left for another delivery", extra={"queue": queue, "error": type(error).__name__})
            return False
        return True

    return syncer


def _by_message_id() -> Callable[[Any], str]:
    from conquiet.rabbit.delivery import current_delivery  # needs the extra "rabbit"; nothing else here does

    def message_id(_: Any) -> str:
        found = current_delivery().message_id
        if found is None:
            raise MessageKeyError(
                "a message came without the AMQP property message_id, so the inbox cannot know it: "
                "let its publisher set one, or give for_rabbit a key function"
            )
        return found

    return message_id
