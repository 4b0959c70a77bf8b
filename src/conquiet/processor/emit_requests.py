"""Check and encode messages and divide them into atomic steps, for all emitters."""

import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, TypedDict

import msgspec

from conquiet.core.causation import carried
from conquiet.core.json_codec import TOO_LARGE, CodecError, encode_payload
from conquiet.core.redaction import printable
from conquiet.core.tracing import Headers, require_headers
from conquiet.core.validation import require_seconds, require_text
from conquiet.errors import ConfigurationError
from conquiet.metrics.registry import PROCESSOR_EMITTED_TOTAL
from conquiet.metrics.safety import count
from conquiet.processor.envelope import check_new, new_id
from conquiet.processor.jobs import JobState, NewState, log_dropped
from conquiet.processor.keys import Keys, keys_of
from conquiet.processor.policy import milliseconds
from conquiet.processor.scripts import ADD_MANY, ADD_ONE, Arg, Script, script
from conquiet.processor.settings import ProcessorSettings
from conquiet.redis_transport.client import AnyServer
from conquiet.redis_transport.replica_wait import ReplicaWait, run_replicated

_DEBOUNCE_KEPT_MS = 24 * 60 * 60 * 1000
"""How long after its due time an unmoved debounced message can still be replaced."""

_MOST_KEYS = 1_000

_text = msgspec.json.Encoder().encode

Moment = float | datetime


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One message for ``emit_many``. The fields are the arguments of ``emit``.

    ``repr()`` shows neither ``data`` nor ``headers``.

    Attributes:
        keep_result_s: How long the handler's result is kept after the end; see ``Processor.emit_and_wait``.
    """

    event: str
    data: Mapping[str, Any] | None = field(default=None, repr=False)
    id: str | None = None
    delay_s: float | None = None
    at: Moment | None = None
    max_attempts: int | None = None
    keep_result_s: float | None = None
    key: str | None = None
    headers: Headers | None = field(default=None, repr=False)


class JobEmitOptions(TypedDict, total=False):
    """Options of every message. ``Emitter.emit`` describes them."""

    id: str | None
    max_attempts: int | None
    key: str | None
    headers: Headers | None


class EmitOptions(JobEmitOptions, total=False):
    """The keywords of ``Emitter.emit``."""

    delay_s: float | None
    at: Moment | None
    stream: str | None
    debounce: str | None
    replicas: int | None


class WaitOptions(JobEmitOptions, total=False):
    """The keywords of ``Emitter.emit_and_wait``."""

    stream: str | None
    timeout_s: float
    keep_result_s: float


class Emitted(NamedTuple):
    """The result of emitting a message.

    Attributes:
        id: Message id, constant over all attempts.
        stream: The stream it was emitted to.
        entry_id: Its entry in the stream. None if it is delayed, queued behind its key, or a duplicate.
        due_ms: When it is due, if it is delayed.
        duplicate: True if its id was emitted before, so that nothing was written.
        ahead: Messages of its key that run before it.
    """

    id: str
    stream: str
    entry_id: str | None = None
    due_ms: int | None = None
    duplicate: bool = False
    ahead: int = 0


class EmitRequest(NamedTuple):
    """One message, ready to be sent."""

    id: str
    event: str
    payload: bytes
    when: str
    once: bool
    is_plain: bool


class ScriptCall(NamedTuple):
    """One atomic step: a script, its arguments, and the messages that it emits."""

    script: Script
    names: Sequence[str]
    args: Sequence[Arg]
    keys: Keys
    messages: Sequence[EmitRequest]

    def send(self, client: AnyServer, wait: ReplicaWait) -> Coroutine[Any, Any, Any]:
        """Run the script once and return its reply, when the replicas have the messages."""
        if wait.replicas:
            return run_replicated(self.script, client, self.names, self.args, wait, self.keys.stream)
        return self.script.call(client, self.names, self.args, stream=self.keys.stream)


class EmitPlanner:
    """Builds the script calls of one emitter.

    Args:
        stream: Default stream.
        settings: Dedupe window, chunk size, payload limit.
    """

    def __init__(self, stream: str, settings: ProcessorSettings) -> None:
        self._stream = stream
        self._settings = settings
        self._keys = {stream: keys_of(stream)}
        self._window_ms = max(1, milliseconds(settings.dedupe_window_s))

    def name(self, stream: str | None) -> str:
        """Return ``stream``, or the default stream."""
        return self._stream if stream is None else stream

    def steps(
        self, messages: Iterable[NewMessage], stream: str | None = None, *, debounce: str | None = None
    ) -> Iterator[ScriptCall]:
        """Return the steps that emit these messages. All messages are checked before the first step is returned.

        With ``debounce``, each message replaces the message that is delayed under this name.
        """
        keys = self._keys_of(stream)
        now_ms = int(time.time() * 1000)
        if debounce is not None:
            require_text("debounce", debounce)
            messages = [_debounceable(message) for message in messages]
        planned = [self._plan(message, keys, now_ms) for message in messages]
        if debounce is not None:
            return (self._debounce_step(plan, keys, debounce) for plan in planned)
        size = self._settings.chunk_size
        return (self._step(planned[start : start + size], keys) for start in range(0, len(planned), size))

    def _debounce_step(self, plan: EmitRequest, keys: Keys, name: str) -> ScriptCall:
        names = (keys.delayed, keys.wake, keys.debounce(plan.event, name), keys.jobs(JobState.DELAYED.value))
        noted_id = "" if self._settings.job_ttl_s is None else plan.id
        args = (plan.payload, plan.when[1:] or 0, _DEBOUNCE_KEPT_MS, keys.job(""), noted_id, plan.event)
        return ScriptCall(script("debounce"), names, args, keys, (plan,))

    def _step(self, chunk: Sequence[EmitRequest], keys: Keys) -> ScriptCall:
        if all(plan.is_plain for plan in chunk):
            step = ADD_ONE if len(chunk) == 1 else ADD_MANY
            return ScriptCall(step, (keys.stream,), [plan.payload for plan in chunk], keys, chunk)
        remembered: list[str] = []
        args: list[Arg] = []
        for plan in chunk:
            if plan.once:
                remembered.append(keys.emitted(plan.id))
            args += (plan.payload, plan.when, len(remembered) if plan.once else 0, self._window_ms)
        return ScriptCall(
            script("emit"), (keys.stream, keys.delayed, keys.wake, keys.order, *remembered), args, keys, chunk
        )

    def _keys_of(self, stream: str | None) -> Keys:
        name = self.name(stream)
        keys = self._keys.get(name)
        if keys is None:
            if len(self._keys) >= _MOST_KEYS:  # stream names may be built from data
                self._keys.clear()
            keys = self._keys[name] = keys_of(name)
        return keys

    def _plan(self, message: NewMessage, keys: Keys, now_ms: int) -> EmitRequest:
        require_new_message(message)
        once = message.id is not None
        message_id = message.id if message.id is not None else new_id()
        check_new(message.event, message_id, message.max_attempts, self._settings.max_attempts_limit, message.key)
        data = {} if message.data is None else message.data
        headers = carried(require_headers(message.headers), keys.stream, message_id)
        try:
            # The same bytes as ``to_payload``, without building and checking an object around the caller's data.
            payload = b'{"v":1,%b"event":%b,"id":%b,"attempt":1,"emitted_ms":%d,"data":%b%b%b}' % (
                b"" if message.key is None else b'"key":%b,' % _text(message.key),
                _text(message.event),
                _text(message_id),
                now_ms,
                encode_payload(data, max_bytes=self._settings.max_payload_bytes),
                (b"" if message.max_attempts is None else b',"max_attempts":%d' % message.max_attempts)
                + _keep_result(message.keep_result_s),
                b"" if not headers else b',"headers":%b' % _text(headers),
            )
            if len(payload) > self._settings.max_payload_bytes:
                raise CodecError(TOO_LARGE)
        except CodecError as error:
            refused = error
        else:
            when = _when(message.delay_s, message.at)
            is_plain = not when and not once and message.key is None
            return EmitRequest(message_id, message.event, payload, when, once, is_plain=is_plain)
        raise refused.as_payload_error(
            f"emit to stream {printable(keys.stream)!r}: data", stream=keys.stream, command="emit"
        )


def require_new_message(message: object) -> NewMessage:
    """Return ``message`` if it is a ``NewMessage``."""
    if not isinstance(message, NewMessage):
        raise ConfigurationError(f"messages must be NewMessage(event, data, ...), got a {type(message).__name__}")
    return message


def reject_due_time(options: Mapping[str, object]) -> None:
    """Raise ``ConfigurationError`` for ``delay_s`` or ``at`` of ``emit_and_wait``: its message is sent immediately."""
    for name in ("delay_s", "at"):
        if name in options:
            raise ConfigurationError(
                f"emit_and_wait takes no {name}: its message is sent immediately. A Processor or an emitter can emit a "
                f"NewMessage(…, {name}=…, keep_result_s=…) and wait for its job"
            )


def checked_messages(messages: Iterable[object]) -> list[NewMessage]:
    """Return the messages as a list. Raise ``ConfigurationError`` unless each is a ``NewMessage``."""
    return [require_new_message(message) for message in messages]


def with_headers(messages: Sequence[NewMessage], headers: Mapping[str, str]) -> list[NewMessage]:
    """Return the messages with these headers added."""
    return [replace(message, headers={**(require_headers(message.headers) or {}), **headers}) for message in messages]


def parse_reply(step: ScriptCall, reply: Any) -> list[Emitted]:
    """Parse the reply of a step and count the emitted messages."""
    stream = step.keys.stream
    if step.script.name == "debounce":
        due, replaced, state_failed = reply
        count(PROCESSOR_EMITTED_TOTAL, stream, "replacing" if replaced else "emitted")
        if state_failed:
            log_dropped(step.keys, 1, "ResponseError")
        return [Emitted(step.messages[0].id, stream, None, int(due))]
    if step.script.name == "emit_now":
        count(PROCESSOR_EMITTED_TOTAL, stream, "emitted", n=len(reply))
        return [
            Emitted(plan.id, stream, entry_id.decode()) for plan, entry_id in zip(step.messages, reply, strict=True)
        ]
    emitted = [_emitted(plan.id, stream, answer) for plan, answer in zip(step.messages, reply, strict=True)]
    duplicates = sum(one.duplicate for one in emitted)
    count(PROCESSOR_EMITTED_TOTAL, stream, "emitted", n=len(emitted) - duplicates)
    count(PROCESSOR_EMITTED_TOTAL, stream, "duplicate", n=duplicates)
    return emitted


def new_states(step: ScriptCall, emitted: Sequence[Emitted]) -> list[NewState]:
    """Return the job states for a step. The debounce script records its state itself."""
    if step.script.name == "debounce":
        return []
    return [
        (one.id, plan.event, 1, JobState.WAITING if one.due_ms is None else JobState.DELAYED)
        for plan, one in zip(step.messages, emitted, strict=True)
        if not one.duplicate
    ]


def _keep_result(keep_result_s: float | None) -> bytes:
    if keep_result_s is None:
        return b""
    return b',"keep_result_ms":%d' % max(1, milliseconds(require_seconds("keep_result_s", keep_result_s)))


def _debounceable(message: NewMessage) -> NewMessage:
    if message.delay_s is None or message.at is not None or message.id is not None:
        raise ConfigurationError("debounce needs delay_s, and goes neither with at nor with id")
    return message


def _when(delay_s: float | None, at: Moment | None) -> str:
    """Return the due time in the format of the scripts."""
    if delay_s is None and at is None:
        return ""
    if delay_s is not None and at is not None:
        raise ConfigurationError("give delay_s or at, not both")
    if at is not None:
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise ConfigurationError("at must be a datetime with a time zone, e.g. datetime.now(UTC)")
            at = at.timestamp()
        return f"={milliseconds(require_seconds('at', at, zero_allowed=True))}"
    wait_ms = milliseconds(require_seconds("delay_s", delay_s, zero_allowed=True))
    return f"+{wait_ms}" if wait_ms else ""


def _emitted(message_id: str, stream: str, answer: bytes) -> Emitted:
    if not answer:
        return Emitted(message_id, stream, duplicate=True)
    if answer[:1] == b"@":
        return Emitted(message_id, stream, None, int(answer[1:]))
    if answer[:1] == b"#":
        return Emitted(message_id, stream, ahead=int(answer[1:]))
    return Emitted(message_id, stream, answer.decode())
