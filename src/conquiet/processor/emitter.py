"""Putting messages in: now, later, once per id, or only the last of a burst.

Each call is one round trip and is sent once. If its reply is lost, ``QueueError.in_doubt`` says so; with
an ``id`` of yours it may be sent again, and whatever happened the first time, the message is there once.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import redis.asyncio

from conquiet.errors import ConfigurationError, PayloadError
from conquiet.kernel.redaction import printable
from conquiet.kernel.validation import require_seconds, require_text
from conquiet.metrics.registry import PROCESSOR_EMITTED_TOTAL, never_raises
from conquiet.processor.envelope import Envelope, check_new, new_id, to_payload
from conquiet.processor.jobs import JobRecorder, JobState
from conquiet.processor.keys import Keys, keys_of
from conquiet.processor.scripts import Arg, script
from conquiet.processor.settings import ProcessorSettings
from conquiet.queue.codec import TOO_LARGE, CodecError, encode_payload

_DEBOUNCE_KEPT_MS = 24 * 60 * 60 * 1000
"""How long after its due time a debounced message that nobody moved can still be replaced."""

_text = msgspec.json.Encoder().encode

Delay = float | timedelta
Moment = float | datetime


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One message for ``emit_many``; the fields are the arguments of ``emit``."""

    event: str
    data: Mapping[str, Any] | None = None
    id: str | None = None
    delay: Delay | None = None
    at: Moment | None = None
    max_attempts: int | None = None


class Emitted(NamedTuple):
    """What became of an emitted message.

    Attributes:
        id: The message's id, through all its attempts.
        stream: Where it went.
        entry_id: Its entry in the stream; None if it waits or was a duplicate.
        due_ms: When it is due, if it waits.
        duplicate: True if its id had been emitted before, so that nothing was done.
    """

    id: str
    stream: str
    entry_id: str | None = None
    due_ms: int | None = None
    duplicate: bool = False


class Emitter:
    """Emits to streams of one server.

    Args:
        client: A client without retries, such as ``clone_async`` makes. It stays the caller's.
        stream: Where messages go that name no stream.
        settings: Window of ids, chunk size, payload limit.
        jobs: Where the states of new jobs are noted, if they are.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        stream: str,
        settings: ProcessorSettings | None = None,
        *,
        jobs: JobRecorder | None = None,
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._settings = settings or ProcessorSettings()
        self._stream = stream
        self._keys = {stream: keys_of(stream)}
        self._window_ms = max(1, round(self._settings.dedupe_window_s * 1000))

    async def emit(
        self,
        event: str,
        data: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,  # noqa: A002 - the word for it
        delay: Delay | None = None,
        at: Moment | None = None,
        stream: str | None = None,
        max_attempts: int | None = None,
        debounce: str | None = None,
    ) -> Emitted:
        """Emit one message.

        Args:
            event: Picks the handler.
            data: A JSON object, for the handler.
            id: Identity of the message. Given here, a second message with this id is not emitted within the
                dedupe window; left out, the message gets an id of its own.
            delay: Seconds until it is due, by the server's clock.
            at: The moment it is due: seconds since the epoch, or a datetime with a time zone.
            stream: Another stream than the usual one.
            max_attempts: Attempts in total, in place of the handler's setting.
            debounce: With ``delay``: a name under which only the last message emitted waits; each new one
                replaces the one before and starts the wait again.

        Raises:
            ConfigurationError: An argument is wrong; nothing was sent.
            PayloadError: ``data`` cannot be JSON or is too large; nothing was sent.
            QueueError: The server refused, or did not answer.
        """
        message = NewMessage(event, data, id, delay, at, max_attempts)
        if debounce is not None:
            return await self._debounce(message, debounce, stream)
        return (await self.emit_many((message,), stream=stream))[0]

    async def emit_many(self, messages: Iterable[NewMessage], *, stream: str | None = None) -> list[Emitted]:
        """Emit many messages, ``chunk_size`` of them in one atomic step each: all of a chunk are there, or none.

        Arguments are checked before anything is sent. If a chunk fails, the chunks before it are there;
        with ids of yours the whole call may be repeated.
        """
        keys = self._keys_of(stream)
        now_ms = int(time.time() * 1000)
        planned = [self._plan(message, keys, now_ms) for message in messages]
        size = self._settings.chunk_size
        emitted: list[Emitted] = []
        for start in range(0, len(planned), size):
            chunk = planned[start : start + size]
            sent = await self._send(chunk, keys)
            if self._jobs is not None:
                await self._note(self._jobs, keys, chunk, sent)
            emitted += sent
        return emitted

    async def _note(self, jobs: JobRecorder, keys: Keys, chunk: Sequence["_Planned"], sent: Sequence[Emitted]) -> None:
        # Afterwards, and only for jobs not yet known: a host may have run one of them by now.
        new = [
            (one.id, plan.event, 1, JobState.WAITING if one.due_ms is None else JobState.DELAYED)
            for plan, one in zip(chunk, sent, strict=True)
            if not one.duplicate
        ]
        await jobs.note_all(keys, new, only_new=True)

    async def _send(self, chunk: Sequence["_Planned"], keys: Keys) -> list[Emitted]:
        if all(plan.is_plain for plan in chunk):
            return await self._send_plain(chunk, keys)
        remembered: list[str] = []
        args: list[Arg] = []
        for plan in chunk:
            if plan.once:
                remembered.append(keys.emitted(plan.id))
            args += (plan.payload, plan.when, len(remembered) if plan.once else 0, self._window_ms)
        names = (keys.stream, keys.delayed, keys.wake, *remembered)
        answers = await script("emit").call(self._client, names, args, stream=keys.stream)
        emitted = [_emitted(plan.id, keys.stream, answer) for plan, answer in zip(chunk, answers, strict=True)]
        duplicates = sum(one.duplicate for one in emitted)
        _count(keys.stream, "emitted", len(emitted) - duplicates)
        _count(keys.stream, "duplicate", duplicates)
        return emitted

    async def _send_plain(self, chunk: Sequence["_Planned"], keys: Keys) -> list[Emitted]:
        payloads = [plan.payload for plan in chunk]
        ids = await script("emit_now").call(self._client, (keys.stream,), payloads, stream=keys.stream)
        _count(keys.stream, "emitted", len(ids))
        stream = keys.stream
        return [Emitted(plan.id, stream, entry_id.decode()) for plan, entry_id in zip(chunk, ids, strict=True)]

    async def _debounce(self, message: NewMessage, name: str, stream: str | None) -> Emitted:
        require_text("debounce", name)
        if message.delay is None or message.at is not None or message.id is not None:
            raise ConfigurationError("debounce needs delay, and goes neither with at nor with id")
        keys = self._keys_of(stream)
        plan = self._plan(message, keys, int(time.time() * 1000))
        due, replaced = await script("debounce").call(
            self._client,
            (keys.delayed, keys.wake, keys.debounce(message.event, name)),
            (plan.payload, plan.when[1:] or 0, _DEBOUNCE_KEPT_MS),
            stream=keys.stream,
        )
        _count(keys.stream, "replacing" if replaced else "emitted", 1)
        return Emitted(plan.id, keys.stream, None, int(due))

    def _keys_of(self, stream: str | None) -> Keys:
        name = stream or self._stream
        keys = self._keys.get(name)
        if keys is None:
            if len(self._keys) >= 1_000:  # noqa: PLR2004 - somebody makes stream names from data
                self._keys.clear()
            keys = self._keys[name] = keys_of(name)
        return keys

    def _plan(self, message: NewMessage, keys: Keys, now_ms: int) -> "_Planned":
        once = message.id is not None
        message_id = message.id if message.id is not None else new_id()
        check_new(message.event, message_id, message.max_attempts)
        data = {} if message.data is None else message.data
        try:
            if message.max_attempts is None:
                # The same bytes as below, without building and checking an object around the caller's.
                payload = b'{"v":1,"event":%b,"id":%b,"attempt":1,"emitted_ms":%d,"data":%b}' % (
                    _text(message.event),
                    _text(message_id),
                    now_ms,
                    encode_payload(data, max_bytes=self._settings.max_payload_bytes),
                )
                if len(payload) > self._settings.max_payload_bytes:
                    raise CodecError(TOO_LARGE)
            else:
                envelope = Envelope(
                    message.event, message_id, dict(data), max_attempts=message.max_attempts, emitted_ms=now_ms
                )
                payload = encode_payload(to_payload(envelope), max_bytes=self._settings.max_payload_bytes)
        except CodecError as error:
            reason = error.reason
        else:
            when = _when(message.delay, message.at)
            return _Planned(message_id, message.event, payload, when, once, is_plain=not when and not once)
        raise PayloadError(
            f"emit to stream {printable(keys.stream)!r}: data was refused: {reason}",
            stream=keys.stream,
            command="emit",
            reason=reason,
        )


class _Planned(NamedTuple):
    id: str
    event: str
    payload: bytes
    when: str
    once: bool
    is_plain: bool


def _when(delay: Delay | None, at: Moment | None) -> str:
    """Return the due time as the scripts read it."""
    if delay is None and at is None:
        return ""
    if delay is not None and at is not None:
        raise ConfigurationError("give delay or at, not both")
    if at is not None:
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise ConfigurationError("at must be a datetime with a time zone, e.g. datetime.now(UTC)")
            at = at.timestamp()
        return f"={round(require_seconds('at', at, zero_allowed=True) * 1000)}"
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    milliseconds = round(require_seconds("delay", seconds, zero_allowed=True) * 1000)
    return f"+{milliseconds}" if milliseconds else ""


def _emitted(message_id: str, stream: str, answer: bytes) -> Emitted:
    if not answer:
        return Emitted(message_id, stream, duplicate=True)
    if answer[:1] == b"@":
        return Emitted(message_id, stream, None, int(answer[1:]))
    return Emitted(message_id, stream, answer.decode())


@never_raises
def _count(stream: str, outcome: str, count: int) -> None:
    if count:
        PROCESSOR_EMITTED_TOTAL.labels(stream, outcome).inc(count)
