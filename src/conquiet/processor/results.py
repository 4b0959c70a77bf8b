"""Results and progress of jobs.

A result is a stream with one entry and a time to live. The worker writes it after the handler returned (or the job was
dead-lettered or cancelled) and before the message is acknowledged, only for jobs emitted with ``keep_result_s``.
Any number of processes may wait for it, before or after it is written, because a stream is read by position.

A result that cannot be written is logged and lost; the job itself is not affected. If a worker is killed after its
commit and before it wrote the result, the next delivery finds the effect and writes a result without a value.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from conquiet.core.json_codec import NOT_JSON_TYPE, CodecError, encode_json
from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.core.threads import run_without_loop
from conquiet.core.validation import require_seconds
from conquiet.errors import ConfigurationError, JobCancelledError, JobFailedError, JobTimeoutError, QueueError
from conquiet.processor.envelope import Envelope
from conquiet.processor.keys import Keys, keys_of
from conquiet.processor.scripts import script
from conquiet.redis_transport.client import AsyncClient, SyncClient
from conquiet.redis_transport.client_commands import command
from conquiet.redis_transport.replies import as_mapping, streams_read

logger = FactLogger(__name__)

PROGRESS_KEPT_MS = 86_400_000
_TEXT = 500
_SLICE_MS = 1_000
_WAITING = "waiting for a result"
SUCCEEDED, DEAD, CANCELLED = "succeeded", "dead", "cancelled"


@dataclass(frozen=True, slots=True)
class Progress:
    """The last progress reported by a handler.

    Attributes:
        fraction: Completed share, from 0 to 1.
        text: Description of the current step.
        at_ms: When it was reported, by the server's clock.
    """

    fraction: float
    text: str
    at_ms: int


class ResultWriter:
    """Writes the results of the jobs of one processor.

    Args:
        client: A client without retries. The caller closes it.
        max_bytes: Maximum size of an encoded value.
    """

    def __init__(self, client: AsyncClient, *, max_bytes: int) -> None:
        self._client = client
        self._max_bytes = max_bytes

    async def succeeded(self, keys: Keys, envelope: Envelope, value: object) -> None:
        """Write the handler's result. A value that cannot be JSON is logged and left out."""
        encoded = b"null"
        try:
            encoded = encode_value(value, max_bytes=self._max_bytes)
        except CodecError as error:
            _warn("kept", error.explanation, keys, envelope)
        await self._write(keys, envelope, SUCCEEDED, encoded)

    async def ended(self, keys: Keys, envelope: Envelope, state: str, reason: str = "") -> None:
        """Write that a job is dead or cancelled."""
        await self._write(keys, envelope, state, encode_json(printable(reason, limit=_TEXT)))

    async def _write(self, keys: Keys, envelope: Envelope, state: str, value: bytes) -> None:
        if envelope.keep_result_ms is None:
            return
        try:
            await script("result").call(
                self._client,
                (keys.result(envelope.id),),
                (state, value, envelope.keep_result_ms),
                stream=keys.stream,
            )
        except QueueError as error:
            _warn("written", type(error).__name__, keys, envelope)


def _warn(what: str, reason: str, keys: Keys, envelope: Envelope) -> None:
    facts = {"job_id": envelope.id, "event_name": envelope.event, "what": what, "reason": reason}
    text = "result of job %(job_id)s of event %(event_name)s is not %(what)s: %(reason)s"
    logger.warning(text, **facts, stream=keys.stream)


def encode_value(value: object, *, max_bytes: int) -> bytes:
    """Return the handler's result as JSON. It may be a JSON value or a model object.

    Models are msgspec structs, dataclasses and pydantic models, also inside lists and dicts. Dates, UUIDs and
    decimals become strings.

    Raises:
        CodecError: It is neither, or it is too large.
    """
    try:
        return encode_json(value, max_bytes=max_bytes)
    except CodecError as error:
        if error.reason != NOT_JSON_TYPE:
            raise
        refused = error
    try:
        built = msgspec.to_builtins(value, enc_hook=_dumped)
    except (TypeError, ValueError, NotImplementedError, RecursionError):
        raise refused from None
    return encode_json(built, max_bytes=max_bytes)


def _dumped(value: Any) -> Any:
    """Return a pydantic object as JSON types, for msgspec."""
    if callable(getattr(type(value), "model_dump", None)):
        return value.model_dump(mode="json")
    raise NotImplementedError


class ResultQuestions:
    """Builds the commands about one job and interprets their replies. Pure.

    Args:
        stream: The job's stream.
        job_id: Its id.
    """

    def __init__(self, stream: str, job_id: str) -> None:
        self.keys = keys_of(stream)
        self._stream = stream
        self._id = job_id

    def read(self, ends_at: float, *, places: int = 1) -> tuple[str | int, ...]:
        """Return the command that waits for the result. One round over all ``places`` takes at most a second."""
        left_ms = min(round((ends_at - time.monotonic()) * 1000), _SLICE_MS)
        return ("XREAD", "BLOCK", max(1, left_ms // places), "STREAMS", self.keys.result(self._id), "0-0")

    def value(self, state: str, value: bytes) -> Any:
        """Return the handler's result, or raise the error for a dead or cancelled job."""
        decoded = msgspec.json.decode(value)
        if state == SUCCEEDED:
            return decoded
        if state == CANCELLED:
            raise self._cancelled()
        raise JobFailedError(
            f"job {printable(self._id)} of stream {printable(self._stream)!r} is dead: {printable(decoded)}",
            job_id=self._id,
            reason=str(decoded),
        )

    def raise_if_cancelled(self, reply: Any) -> None:
        """Raise ``JobCancelledError`` if the cancellation record is in the state ``cancelled``."""
        if as_mapping(reply).get(b"state") == b"cancelled":
            raise self._cancelled()

    def too_late(self, timeout_s: float) -> JobTimeoutError:
        """Return the error for a timeout."""
        return JobTimeoutError(
            f"job {printable(self._id)} of stream {printable(self._stream)!r} has not ended within "
            f"{timeout_s:g} s, or its result is not kept: emit it with keep_result_s",
            job_id=self._id,
            timeout_s=timeout_s,
        )

    def _cancelled(self) -> JobCancelledError:
        return JobCancelledError(
            f"job {printable(self._id)} of stream {printable(self._stream)!r} was cancelled", job_id=self._id
        )


def parse_result(reply: Any) -> tuple[str, bytes] | None:
    """Return state and value from the reply of XREAD. None if the job has not ended."""
    if not reply:
        return None
    [(_, [(_, fields)])] = streams_read(reply)
    facts = as_mapping(fields)
    return facts[b"state"].decode(), facts[b"value"]


def parse_progress(reply: Any) -> Progress | None:
    """Return the progress in the hash of a job. None if there is none."""
    facts = {name.decode(): value.decode() for name, value in as_mapping(reply).items()}
    if not facts:
        return None
    return Progress(float(facts["fraction"]), facts["text"], int(facts["at_ms"]))


def new_progress(fraction: object, text: object) -> Progress:
    """Validate the progress that a handler reports. The server sets its time."""
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise ConfigurationError("the progress must be a number from 0 to 1")
    if not isinstance(text, str):
        raise ConfigurationError("the text of a progress must be a string")
    return Progress(float(fraction), printable(text, limit=_TEXT), 0)


async def write_progress(client: AsyncClient, stream: str, job_id: str, progress: Progress) -> None:
    """Write the progress of a job; see ``JobContext.progress``."""
    args = (repr(progress.fraction), progress.text, PROGRESS_KEPT_MS)
    await script("progress").call(client, (keys_of(stream).progress(job_id),), args, stream=stream)


class JobHandle:
    """An emitted job, to wait for its result. Any process may create a handle from the id.

    Args:
        client: A client without retries. The caller closes it.
        stream: Its stream.
        job_id: The job's id.

    Attributes:
        id: The job's id.
        stream: Its stream.
    """

    def __init__(self, client: AsyncClient, stream: str, job_id: str) -> None:
        self._client = client
        self.id = job_id
        self.stream = stream

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, stream={self.stream!r})"

    async def result(self, *, timeout_s: float = 30.0) -> Any:
        """Wait until the job has ended and return the handler's result.

        The result is kept for ``keep_result_s`` after the end. A job emitted without ``keep_result_s`` has none.

        Raises:
            JobFailedError: The job is dead.
            JobCancelledError: The job was cancelled.
            JobTimeoutError: The job did not end in time. It continues; the call may be repeated.
            QueueError: The server returned an error or did not reply.
        """
        ends_at = time.monotonic() + require_seconds("timeout_s", timeout_s, zero_allowed=True)
        while True:
            streams = await self._streams()
            for asked in (ResultQuestions(stream, self.id) for stream in streams):
                words = asked.read(ends_at, places=len(streams))
                reply = await command(self._client, *words, action=_WAITING, stream=self.stream, blocking=True)
                if (found := parse_result(reply)) is not None:
                    return asked.value(*found)
                asked.raise_if_cancelled(await self._hash(asked.keys.cancelled(self.id)))
            if time.monotonic() >= ends_at:
                raise ResultQuestions(self.stream, self.id).too_late(timeout_s)

    async def progress(self) -> Progress | None:
        """Return what the job's handler has reported last; None if it has reported nothing."""
        for stream in await self._streams():
            if found := parse_progress(await self._hash(keys_of(stream).progress(self.id))):
                return found
        return None

    async def _streams(self) -> Sequence[str]:
        """Return the streams that the job may be in."""
        return (self.stream,)

    async def _hash(self, key: str) -> Any:
        return await command(self._client, "HGETALL", key, stream=self.stream)


class SyncJobHandle:
    """``JobHandle`` for code without asyncio.

    Args:
        client: A client without retries and with a socket timeout of more than a second. The caller closes it.
        stream: Its stream.
        job_id: The job's id.

    Attributes:
        id: The job's id.
        stream: Its stream.
    """

    def __init__(self, client: SyncClient, stream: str, job_id: str) -> None:
        self.id = job_id
        self.stream = stream
        # With a synchronous client its coroutines never suspend.
        self._job = JobHandle(client, stream, job_id)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, stream={self.stream!r})"

    def result(self, *, timeout_s: float = 30.0) -> Any:
        """Wait until the job has ended and return the handler's result; see ``JobHandle.result``."""
        return run_without_loop(self._job.result(timeout_s=timeout_s))

    def progress(self) -> Progress | None:
        """Return what the job's handler has reported last; None if it has reported nothing."""
        return run_without_loop(self._job.progress())
