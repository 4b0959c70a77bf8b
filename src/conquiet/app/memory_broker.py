"""The Redis of ``TestApp``: a clock that the test advances, and messages in memory by due time."""

import asyncio
import heapq
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from conquiet.app.bus import Message, new_message
from conquiet.core.json_codec import CodecError
from conquiet.core.signatures import takes_keywords_of
from conquiet.core.threads import running_loop
from conquiet.core.validation import require_seconds
from conquiet.errors import ConfigurationError, LifecycleError
from conquiet.processor.dead_letter_record import DeadRecord
from conquiet.processor.emit_requests import EmitPlanner, EmitRequest, Emitted, NewMessage, ScriptCall
from conquiet.processor.emitter import Emitter
from conquiet.processor.envelope import Envelope, EnvelopeError, from_payload
from conquiet.processor.policy import Reason
from conquiet.processor.results import Progress

if TYPE_CHECKING:
    from conquiet.app.assembly import Assembly
    from conquiet.processor.settings import ProcessorSettings

_MS = 1_000


class TestClock:
    """The clock of a ``TestApp``. A test moves it by ``advance`` only.

    Attributes:
        now_ms: The time in milliseconds.
        until_ms: The time up to which the next ``drain()`` runs messages.
    """

    __test__ = False  # pytest collects classes by this prefix

    def __init__(self, now: datetime) -> None:
        self.now_ms = self.until_ms = round(now.timestamp() * _MS)

    def advance(self, by_s: float) -> None:
        """Move the clock on by this many seconds: the next ``drain()`` runs all messages that are due until then."""
        self.until_ms += round(require_seconds("by_s", by_s) * _MS)

    def now(self) -> datetime:
        """Return the time; inside a handler, the due time of its message."""
        return datetime.fromtimestamp(self.now_ms / _MS, UTC)

    def time(self) -> float:
        """Return seconds since the epoch."""
        return self.now_ms / _MS

    def monotonic(self) -> float:
        """Return the same as ``time()``."""
        return self.now_ms / _MS

    def move_to(self, due_ms: int) -> None:
        """Move to the due time of a message; never back."""
        self.now_ms = max(self.now_ms, due_ms)

    def pass_to(self, due_ms: int) -> None:
        """Move to a time; the next ``drain()`` runs messages up to it at least."""
        self.move_to(due_ms)
        self.until_ms = max(self.until_ms, self.now_ms)


@dataclass(frozen=True, slots=True)
class EmittedMessage:
    """A message that was sent: directly, or by a transaction that committed.

    Attributes:
        event: Its event.
        data: The JSON object.
        id: Its id.
        stream: Its stream.
        due: Its due time.
    """

    event: str
    data: dict[str, Any]
    id: str
    stream: str
    due: datetime


class MemoryBroker:
    """Messages by due time: the bus of the app, the target of its relay, and the emitter of its contexts.

    Messages are checked and encoded by ``EmitPlanner``, as by the emitters of Redis.

    Args:
        clock: The time of the test.
        stream: The app's stream.
        settings: The settings of its processor.
    """

    def __init__(self, clock: TestClock, stream: str, settings: "ProcessorSettings") -> None:
        self._clock = clock
        self._settings = settings
        self._planner = EmitPlanner(stream, settings)
        self._due: list[tuple[int, int, str, Envelope]] = []
        self._order = count()
        self._remembered: dict[tuple[str, str], int] = {}
        self._debounced: dict[str, Envelope] = {}
        self._lock = threading.Lock()
        self._lines: dict[tuple[str, str], list[Envelope]] = {}
        """Messages of each key by stream and key: first the message that has its turn, then the waiting messages."""
        self._kept: set[int] = set()
        self.emitted: list[EmittedMessage] = []
        self.delays_s: dict[str, float] = {}
        self.outbox_used = False
        self.results: dict[tuple[str, str], tuple[str, bytes]] = {}
        """Results of jobs with ``keep_result_s``: state and value, by stream and id."""
        self.progress: dict[tuple[str, str], Progress] = {}
        """The last progress reports, by stream and id."""
        self.wait: Callable[[str, str, float], Awaitable[Any]] | None = None
        """Runs due messages until a job of a stream has ended, and returns its result."""
        self.loop: asyncio.AbstractEventLoop | None = None

    # ------------------------------------------------------------ Bus
    async def send(self, message: Message) -> str:
        """See ``Bus``."""
        return self.send_sync(message)

    def send_sync(self, message: Message) -> str:
        """See ``Bus``."""
        return self.send_many_sync([message])[0]

    async def send_many(self, messages: list[Message]) -> list[str]:
        """See ``Bus``."""
        return self.send_many_sync(messages)

    def send_many_sync(self, messages: list[Message]) -> list[str]:
        """See ``Bus``."""
        return [one.id for one in self._emit(map(new_message, messages), messages[0].stream)]

    async def wait_for(self, message: Message, timeout_s: float) -> Any:
        """See ``Bus``. Runs due messages until this one has ended."""
        message_id = self.send_sync(message)
        assert self.wait is not None  # noqa: S101 - TestApp sets it
        return await self.wait(message.stream, message_id, timeout_s)

    def wait_for_sync(self, message: Message, timeout_s: float) -> Any:
        """See ``Bus``; for the thread of a handler."""
        assert self.loop is not None  # noqa: S101 - TestApp sets it
        if running_loop() is self.loop:
            raise LifecycleError("a coroutine cannot wait in emit_and_wait_sync: call 'await app.emit_and_wait(…)'")
        return asyncio.run_coroutine_threadsafe(self.wait_for(message, timeout_s), self.loop).result()

    async def close(self) -> None:
        """Close nothing."""

    # ------------------------------------------------------------ JobEmitter
    @takes_keywords_of(Emitter.emit)
    async def emit(
        self,
        event: str,
        data: Mapping[str, Any] | None = None,
        *,
        stream: str | None = None,
        debounce: str | None = None,
        replicas: int | None = None,
        **options: Any,
    ) -> Emitted:
        """See ``Emitter.emit``."""
        self._settings.replica_wait(replicas)
        return self._emit([NewMessage(event, data, **options)], stream, debounce)[0]

    async def emit_many(self, messages: Iterable[NewMessage], *, stream: str | None = None) -> list[Emitted]:
        """See ``Emitter.emit_many``."""
        return self._emit(messages, stream)

    async def report_progress(self, stream: str, job_id: str, progress: Progress) -> None:
        """See ``JobEmitter``."""
        self.progress[stream, job_id] = replace(progress, at_ms=self._clock.now_ms)

    def _emit(self, messages: Iterable[NewMessage], stream: str | None, debounce: str | None = None) -> list[Emitted]:
        with self._lock:
            steps = self._planner.steps(messages, stream, debounce=debounce)
            return [self._take(request, step) for step in steps for request in step.messages]

    def _take(self, request: EmitRequest, step: ScriptCall) -> Emitted:
        """Queue one message of a step, as the step's script does."""
        stream, now_ms = step.keys.stream, self._clock.now_ms
        if request.once:
            if self._remembered.get((stream, request.id), now_ms) > now_ms:
                return Emitted(request.id, stream, duplicate=True)
            self._remembered[stream, request.id] = now_ms + round(self._settings.dedupe_window_s * _MS)
        envelope = from_payload(msgspec.json.decode(request.payload), entry_id=request.id)
        envelope.emitted_ms = now_ms
        if step.script.name == "debounce":
            name = step.names[2]
            self._due = [item for item in self._due if item[3] is not self._debounced.get(name)]
            heapq.heapify(self._due)
            self._debounced[name] = envelope
        due_ms = now_ms
        if request.when:
            due_ms = int(request.when[1:]) + (now_ms if request.when[0] == "+" else 0)
        ahead = self._ahead(stream, envelope) if due_ms <= now_ms else 0
        self.publish_at(due_ms, stream, envelope)
        if due_ms > now_ms:
            return Emitted(request.id, stream, due_ms=due_ms)
        return Emitted(request.id, stream, None if ahead else f"{now_ms}-{len(self.emitted)}", ahead=ahead)

    def _ahead(self, stream: str, envelope: Envelope) -> int:
        """Return how many messages of its key come before a new one."""
        if envelope.key is None:
            return 0
        line = self._lines.get((stream, envelope.key), [])
        due = [item[3] for item in self._due if item[0] <= self._clock.now_ms and item[2] == stream]
        queued = [one for one in due if one.key == envelope.key and all(one is not other for other in line)]
        return len(line) + len(queued)

    # ------------------------------------------------------------ queue
    def publish_at(self, due_ms: int, stream: str, envelope: Envelope) -> None:
        """Record and queue a new message."""
        due = datetime.fromtimestamp(due_ms / _MS, UTC)
        self.emitted.append(EmittedMessage(envelope.event, dict(envelope.data), envelope.id, stream, due))
        self.put(due_ms, stream, envelope)

    def put(self, due_ms: int, stream: str, envelope: Envelope) -> None:
        """Queue a message, a retry or another delivery."""
        heapq.heappush(self._due, (due_ms, next(self._order), stream, envelope))

    def next_due_ms(self) -> int | None:
        """Return the due time of the next message; None if there is none."""
        return self._due[0][0] if self._due else None

    def pop(self) -> tuple[str, Envelope]:
        """Remove and return the message that is due first."""
        _, _, stream, envelope = heapq.heappop(self._due)
        return stream, envelope

    # ------------------------------------------------------------ order by key
    def take_turn(self, stream: str, envelope: Envelope) -> bool:
        """Start the turn of a message, or queue it behind the message of its key that is in progress: then False."""
        if envelope.key is None:
            return True
        line = self._lines.setdefault((stream, envelope.key), [])
        if all(one is not envelope for one in line):
            line.append(envelope)
        return line[0] is envelope

    def keep_turn(self, stream: str, envelope: Envelope) -> None:
        """Keep the turn of a message that will be delivered again."""
        line = [] if envelope.key is None else self._lines.get((stream, envelope.key), [])
        if line and line[0] is envelope:
            self._kept.add(id(envelope))

    def end_turn(self, stream: str, envelope: Envelope) -> None:
        """Queue the next message of the key, unless this message keeps its turn."""
        if envelope.key is None or id(envelope) in self._kept:
            self._kept.discard(id(envelope))
            return
        line = self._lines[stream, envelope.key]
        del line[0]
        if line:
            self.put(self._clock.now_ms, stream, line[0])
        else:
            del self._lines[stream, envelope.key]

    def pop_due(self, stream: str, event: str, now_ms: int, limit: int) -> list[Envelope]:
        """Remove and return up to ``limit`` due messages of one event, in order."""
        due = sorted(item for item in self._due if item[0] <= now_ms and (item[2], item[3].event) == (stream, event))
        taken = due[:limit]
        numbers = {item[1] for item in taken}
        self._due = [item for item in self._due if item[1] not in numbers]
        heapq.heapify(self._due)
        return [item[3] for item in taken]


def read_fields(fields: Mapping[str, str | bytes], assembly: "Assembly", clock: TestClock) -> "Envelope | DeadRecord":
    """Decode an entry of another program with the app's ``decode``; return its dead letter if that fails."""
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
