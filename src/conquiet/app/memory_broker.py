"""What ``TestApp`` has in place of Redis: a clock that the test moves, and messages in memory by due time."""

import asyncio
import contextlib
import heapq
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from conquiet.app.bus import Message
from conquiet.core.json_codec import CodecError
from conquiet.core.tracing import Headers
from conquiet.core.validation import require_seconds
from conquiet.errors import ConfigurationError, LifecycleError
from conquiet.processor.dead_letter_record import DeadRecord
from conquiet.processor.envelope import Envelope, EnvelopeError, from_payload
from conquiet.processor.policy import Reason

if TYPE_CHECKING:
    from conquiet.app.assembly import Assembly
    from conquiet.transactional.outbox import Outbox
    from conquiet.transactional.relay_decisions import OutboxMessage
    from conquiet.transactional.targets import Results

_MS = 1_000


class TestClock:
    """The time of a ``TestApp``. It stands still until ``advance``."""

    __test__ = False  # not a test, whatever pytest makes of its name

    def __init__(self, now: datetime) -> None:
        self._now_ms = round(now.timestamp() * _MS)
        self._until_ms = self._now_ms

    def advance(self, seconds: float) -> None:
        """Let time pass: the next ``drain()`` runs everything that becomes due in it."""
        self._until_ms += round(require_seconds("seconds", seconds) * _MS)

    def now(self) -> datetime:
        """Return the time; inside a handler, the time at which its message was due."""
        return datetime.fromtimestamp(self._now_ms / _MS, UTC)

    def time(self) -> float:
        """Return seconds since the epoch."""
        return self._now_ms / _MS

    def monotonic(self) -> float:
        """Return the same, for measuring."""
        return self._now_ms / _MS

    @property
    def now_ms(self) -> int:
        """The time in milliseconds."""
        return self._now_ms

    @property
    def until_ms(self) -> int:
        """The time at which the next ``drain()`` ends."""
        return self._until_ms

    def move_to(self, due_ms: int) -> None:
        """Move on to the time at which a message is due; never back."""
        self._now_ms = max(self._now_ms, due_ms)

    def pass_to(self, due_ms: int) -> None:
        """Move on to a time, and let the next ``drain()`` end there or later."""
        self.move_to(due_ms)
        self._until_ms = max(self._until_ms, self._now_ms)


@dataclass(frozen=True, slots=True)
class EmittedMessage:
    """A message that was sent: directly, or by a transaction that committed.

    Attributes:
        event: Its event.
        data: The JSON object.
        id: Its id.
        stream: Where it went.
        due: When it is due.
    """

    event: str
    data: dict[str, Any]
    id: str
    stream: str
    due: datetime


@dataclass(slots=True)
class MemoryDelivery:
    """What a ``JobContext`` needs of the engine."""

    stream: str
    group: str
    id: str
    delivery_count: int = 1
    acknowledged: bool = field(default=False)

    async def ack(self) -> None:
        """Acknowledge the message."""
        self.acknowledged = True

    @contextlib.contextmanager
    def leaving(self) -> Iterator[None]:
        """Do nothing: there is no server to settle with."""
        yield

    def mark_acknowledged(self) -> None:
        """Mark the message as acknowledged."""
        self.acknowledged = True

    def check_lease(self) -> None:
        """Do nothing: there is no other worker."""


class MemoryBroker:
    """Messages by due time: the bus of the app, the target of its relay, and the emitter of its contexts."""

    def __init__(self, clock: TestClock) -> None:
        self._clock = clock
        self._due: list[tuple[int, int, str, Envelope]] = []
        self._order = count()
        self._seen: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._holders: dict[tuple[str, str], Envelope] = {}
        self._behind: dict[tuple[str, str], list[Envelope]] = {}
        self._kept: set[int] = set()
        self.emitted: list[EmittedMessage] = []
        self.delays_s: dict[str, float] = {}
        self.outbox_used = False
        self.results: dict[tuple[str, str], tuple[str, bytes]] = {}
        """How jobs ended that something waits for: state and value, by stream and id."""
        self.wait: Callable[[str, str, float], Awaitable[Any]] | None = None
        """Runs what is due until a job of a stream has ended, and returns its result."""
        self.loop: asyncio.AbstractEventLoop | None = None

    # ------------------------------------------------------------ Bus
    async def send(self, message: Message) -> str:
        """See ``send_sync``."""
        return self.send_sync(message)

    def send_sync(self, message: Message) -> str:
        """Queue a message and return its id; a second message with a given id is dropped."""
        message_id = uuid4().hex if message.id is None else message.id
        with self._lock:
            if message.id is not None:
                if (message.stream, message.id) in self._seen:
                    return message_id
                self._seen.add((message.stream, message.id))
            due_ms = self._clock.now_ms + round((message.delay_s or 0.0) * _MS)
            if message.at is not None:
                due_ms = round(message.at.timestamp() * _MS)
            self.publish_at(due_ms, message.stream, _envelope(message, message_id))
        return message_id

    async def send_many(self, messages: list[Message]) -> list[str]:
        """Queue messages."""
        return self.send_many_sync(messages)

    def send_many_sync(self, messages: list[Message]) -> list[str]:
        """Queue messages."""
        return [self.send_sync(message) for message in messages]

    async def wait_for(self, message: Message, timeout_s: float) -> Any:
        """Queue a message, and run what is due until it has ended."""
        message_id = self.send_sync(message)
        assert self.wait is not None  # noqa: S101 - TestApp sets it
        return await self.wait(message.stream, message_id, timeout_s)

    def wait_for_sync(self, message: Message, timeout_s: float) -> Any:
        """Do the same from the thread of a handler."""
        assert self.loop is not None  # noqa: S101 - TestApp sets it
        if _running_loop() is self.loop:
            raise LifecycleError("a coroutine cannot wait in emit_and_wait_sync: call 'await app.emit_and_wait(…)'")
        return asyncio.run_coroutine_threadsafe(self.wait_for(message, timeout_s), self.loop).result()

    async def close(self) -> None:
        """Close nothing."""

    # ------------------------------------------------------------ Emitter of a JobContext
    async def emit(self, event: str, data: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """Emit for a ``JobContext``."""
        from conquiet.processor.emit_requests import Emitted

        stream = options.get("stream") or self.stream
        message = Message(event, dict(data or {}), stream, options.get("id"), options.get("delay_s"), options.get("at"))
        message = replace(message, key=options.get("key"), headers=options.get("headers"))
        return Emitted(await self.send(message), stream)

    stream = ""

    # ------------------------------------------------------------ queue
    def publish_at(self, due_ms: int, stream: str, envelope: Envelope) -> None:
        """Take a new message."""
        due = datetime.fromtimestamp(due_ms / _MS, UTC)
        self.emitted.append(EmittedMessage(envelope.event, dict(envelope.data), envelope.id, stream, due))
        self.put(due_ms, stream, envelope)

    def put(self, due_ms: int, stream: str, envelope: Envelope) -> None:
        """Queue a message, a retry or one more delivery."""
        heapq.heappush(self._due, (due_ms, next(self._order), stream, envelope))

    def next_due_ms(self) -> int | None:
        """Return when the next message is due."""
        return self._due[0][0] if self._due else None

    def pop(self) -> tuple[str, Envelope]:
        """Take the message that is due first."""
        _, _, stream, envelope = heapq.heappop(self._due)
        return stream, envelope

    # ------------------------------------------------------------ order by key
    def take_turn(self, stream: str, envelope: Envelope) -> bool:
        """True if no other message of its key has its turn. Otherwise it waits behind that one."""
        if envelope.key is None:
            return True
        if self._holders.setdefault((stream, envelope.key), envelope) is envelope:
            return True
        self._behind.setdefault((stream, envelope.key), []).append(envelope)
        return False

    def keep_turn(self, stream: str, envelope: Envelope) -> None:
        """Let the message keep its turn: it comes again."""
        if envelope.key is not None and self._holders.get((stream, envelope.key)) is envelope:
            self._kept.add(id(envelope))

    def end_turn(self, stream: str, envelope: Envelope) -> None:
        """Let the next message of the key run, unless this one has kept its turn."""
        if envelope.key is None or id(envelope) in self._kept:
            self._kept.discard(id(envelope))
            return
        del self._holders[stream, envelope.key]
        if behind := self._behind.pop((stream, envelope.key), []):
            first, *rest = behind
            self._holders[stream, envelope.key] = first
            if rest:
                self._behind[stream, envelope.key] = rest
            self.put(self._clock.now_ms, stream, first)

    def pop_due(self, stream: str, event: str, now_ms: int, limit: int) -> list[Envelope]:
        """Take up to so many messages of one event that are due, in their order."""
        due = sorted(item for item in self._due if item[0] <= now_ms and (item[2], item[3].event) == (stream, event))
        taken = due[:limit]
        numbers = {item[1] for item in taken}
        self._due = [item for item in self._due if item[1] not in numbers]
        heapq.heapify(self._due)
        return [item[3] for item in taken]


def _envelope(message: Message, message_id: str) -> Envelope:
    headers = None if message.headers is None else dict(message.headers)
    kept_ms = None if message.keep_result_s is None else round(message.keep_result_s * _MS)
    return Envelope(
        event=message.event,
        id=message_id,
        data=message.data,
        key=message.key,
        headers=headers,
        keep_result_ms=kept_ms,
    )


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class MemoryTarget:
    """A stream, to the relay."""

    def __init__(self, broker: MemoryBroker, clock: TestClock, stream: str) -> None:
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
            self._broker.publish_at(self._clock.now_ms + delay_ms, self._stream, envelope)
        return [PUBLISHED for _ in messages]


class ClockedOutbox:
    """The app's outbox; its delays are those of the test's clock, not of the database's."""

    def __init__(self, outbox: "Outbox", broker: MemoryBroker) -> None:
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


def read_fields(fields: Mapping[str, str | bytes], assembly: "Assembly", clock: TestClock) -> "Envelope | DeadRecord":
    """Return the message that an entry of another program is to an app, or its dead letter if it is none."""
    from conquiet.processor.foreign_format import EnvelopeFormat

    if assembly.decode is None:
        raise ConfigurationError("the app has no function that reads plain fields: give it App(…, decode=…)")
    flat = [part if isinstance(part, bytes) else part.encode() for pair in fields.items() for part in pair]
    entry_id = f"{clock.now_ms}-{len(flat)}"
    reason = Reason.MALFORMED
    try:
        payload, _ = EnvelopeFormat(assembly.decode).read(
            entry_id, flat, max_bytes=assembly.processor_settings.max_payload_bytes
        )
        reason = Reason.NOT_AN_ENVELOPE
        return from_payload(payload, entry_id=entry_id)
    except (CodecError, EnvelopeError) as error:
        text = error.reason
    return DeadRecord(reason=reason.value, id=entry_id, entry_id=entry_id, group=assembly.group, error=text)
