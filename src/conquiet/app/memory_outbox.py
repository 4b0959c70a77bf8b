"""The outbox of ``TestApp``: rows of the app's database, published in memory at the time of the test's clock."""

from typing import TYPE_CHECKING, Any

from conquiet.core.tracing import Headers
from conquiet.processor.envelope import Envelope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from conquiet.app.memory_broker import MemoryBroker, TestClock
    from conquiet.transactional.outbox import Outbox
    from conquiet.transactional.relay_decisions import OutboxMessage
    from conquiet.transactional.targets import Results

_MS = 1_000


class MemoryTarget:
    """The target of the relay for one stream."""

    def __init__(self, broker: "MemoryBroker", clock: "TestClock", stream: str) -> None:
        self._broker = broker
        self._clock = clock
        self._stream = stream

    def publish(self, messages: "Sequence[OutboxMessage]") -> "Results":
        """See ``Target.publish``."""
        from conquiet.transactional.payload import decode
        from conquiet.transactional.targets import PUBLISHED

        for message in messages:
            delay_ms = round(self._broker.delays_s.pop(message.message_id, 0.0) * _MS)
            envelope = Envelope(event=message.event or "", id=message.message_id, data=decode(message.payload))
            envelope.key = None if message.key is None else message.key.decode()
            envelope.headers = message.headers
            self._broker.publish_at(self._clock.now_ms + delay_ms, self._stream, envelope)
        return [PUBLISHED for _ in messages]


class ClockedOutbox:
    """The app's outbox, with delays by the test's clock and not by the database's."""

    def __init__(self, outbox: "Outbox", broker: "MemoryBroker") -> None:
        self._outbox = outbox
        self._broker = broker

    def add(
        self,
        session: Any,
        target: str,
        payload: dict[str, Any],
        key: str | None = None,
        *,
        event: str,
        delay_s: float | None = None,
        headers: Headers | None = None,
    ) -> str:
        """See ``Outbox.add``."""
        return self._note(self._outbox.add(session, target, payload, key, event=event, headers=headers), delay_s)

    async def add_async(
        self,
        session: Any,
        target: str,
        payload: dict[str, Any],
        key: str | None = None,
        *,
        event: str,
        delay_s: float | None = None,
        headers: Headers | None = None,
    ) -> str:
        """See ``Outbox.add_async``."""
        return self._note(
            await self._outbox.add_async(session, target, payload, key, event=event, headers=headers), delay_s
        )

    def add_many(
        self, session: Any, target: str, payloads: list[dict[str, Any]], *, event: str, delay_s: float | None = None
    ) -> list[str]:
        """See ``Outbox.add_many``."""
        return [self._note(one, delay_s) for one in self._outbox.add_many(session, target, payloads, event=event)]

    async def add_many_async(
        self, session: Any, target: str, payloads: list[dict[str, Any]], *, event: str, delay_s: float | None = None
    ) -> list[str]:
        """See ``Outbox.add_many_async``."""
        added = await self._outbox.add_many_async(session, target, payloads, event=event)
        return [self._note(one, delay_s) for one in added]

    def _note(self, message_id: str, delay_s: float | None) -> str:
        self._broker.outbox_used = True
        if delay_s:
            self._broker.delays_s[message_id] = delay_s
        return message_id
