"""Publish to RabbitMQ from a relay, with confirms.

The publisher needs an event loop, and the relay is synchronous. So the target runs a loop in a background thread, where
the connection replies to heartbeats even while the relay sleeps.
"""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from conquiet.core.closing import ClosedAfterUse
from conquiet.core.validation import require_text
from conquiet.errors import LifecycleError, RabbitError
from conquiet.rabbit.publisher import Outgoing, Publisher
from conquiet.transactional.inbox_keys import OUTBOX_ID
from conquiet.transactional.payload import decode
from conquiet.transactional.relay_decisions import (
    OutboxMessage,
    PublishOutcome,
    batches_without_key_repeats,
    blocked_keys,
)
from conquiet.transactional.targets import DEFERRED, PUBLISHED, Results

T = TypeVar("T")


class ToRabbit(ClosedAfterUse):
    """Publishes to a RabbitMQ queue (or an exchange), persistent, mandatory and confirmed. Close it after the relay.

    The property ``timestamp`` is the time at which the row was written, ``type`` is the event it was added with.

    A broker may refuse one message (its queue is full) and accept the next. So messages of one key are sent one
    after the other, each after the confirmation of the one before; different keys, and messages without a key, are sent
    together.

    Args:
        url: As for ``RabbitConsumer``.
        routing_key: With the default exchange: the name of the queue.
        exchange: Where to publish.
        timeout_s: Longest wait for a connection and for a confirmation.
    """

    def __init__(
        self, url: str | Sequence[str], routing_key: str, *, exchange: str = "", timeout_s: float = 30.0
    ) -> None:
        self._routing_key = require_text("routing_key", routing_key)
        self._exchange = exchange
        self._publisher = Publisher(url, timeout_s=timeout_s)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def publish(self, messages: Sequence[OutboxMessage]) -> Results:
        """See ``Target.publish``.

        Raises:
            RabbitError: None of them could be published: the broker is unavailable, or its queue is missing or full.
        """
        return self._on_loop(self._publish(messages))

    async def _publish(self, messages: Sequence[OutboxMessage]) -> Results:
        results: dict[int, tuple[PublishOutcome, str]] = {}
        blocked: set[bytes] = set()
        failure: Any = None
        for part in batches_without_key_repeats(messages):
            sent = [message for message in part if message.key is None or message.key not in blocked]
            answers = await asyncio.gather(*map(self._send, sent), return_exceptions=True)
            outcomes = [_outcome(answer) for answer in answers]
            failure = next((one for one, result in zip(answers, outcomes, strict=True) if result is DEFERRED), failure)
            results.update(zip((message.seq for message in sent), outcomes, strict=True))
            blocked |= blocked_keys(sent, [outcome for outcome, _ in outcomes])
        if failure is not None and set(results.values()) == {DEFERRED}:
            raise failure
        return [results.get(message.seq, DEFERRED) for message in messages]

    async def _send(self, message: OutboxMessage) -> str:
        body = {**decode(message.payload), OUTBOX_ID: message.message_id}
        properties: dict[str, Any] = {"timestamp": message.created_ms // 1000}
        if message.event is not None:
            properties["type"] = message.event
        outgoing = Outgoing(
            self._routing_key,
            body,
            exchange=self._exchange,
            message_id=message.message_id,
            headers=message.headers,
            properties=properties,
        )
        return await self._publisher.send(outgoing)

    def close(self) -> None:
        """Close the connection and end the thread."""
        self._closed = True
        loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._publisher.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed:
            work.close()
            raise LifecycleError("this ToRabbit is closed; create a new one")
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="conquiet-to-rabbit", daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _outcome(answer: object) -> tuple[PublishOutcome, str]:
    if isinstance(answer, RabbitError | OSError | asyncio.CancelledError):
        return DEFERRED  # not confirmed: it is published again with the same id, and no attempt is counted
    if isinstance(answer, BaseException):
        return PublishOutcome.REFUSED, type(answer).__name__
    return PUBLISHED
