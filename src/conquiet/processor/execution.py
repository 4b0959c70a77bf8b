"""One message, from the engine's hands to its end. To the engine this is a handler like any other.

    read the envelope ─▶ for this group? ─▶ due? ─▶ known event? ─▶ paused? ─▶ its turn? ─▶ a slot? ─▶ run ─▶ decide
            │                  │              │          │            │           │           │
         dead letter       nothing         waits     dead letter    parked      waits   back, if we stop

Whatever takes a message out of the engine's hands acknowledges it in the same step on the server. What
returns normally is acknowledged by the engine. What is stored anew is made from the bytes that were read:
``ctx.data`` is the handler's, who may do with it as he likes.
"""

import asyncio
import logging
import time
from collections.abc import Mapping

import redis.asyncio

from conquiet.kernel.functions import refuse_unawaited
from conquiet.kernel.identity import hostname
from conquiet.kernel.redaction import printable
from conquiet.processor.context import Delivery
from conquiet.processor.emitter import Emitter
from conquiet.processor.envelope import (
    Envelope,
    EnvelopeError,
    from_payload,
    joined,
    next_attempt,
    parts_of,
    same_attempt,
)
from conquiet.processor.jobs import JobRecorder, JobState
from conquiet.processor.keys import Keys
from conquiet.processor.pauses import Pauses
from conquiet.processor.policy import (
    DeadLetter,
    Done,
    HandlerCancelledError,
    RateLimit,
    Reason,
    Reject,
    RetryAt,
    decide,
)
from conquiet.processor.records import DeadRecord, describe, encode_record
from conquiet.processor.routes import Route
from conquiet.processor.scripts import script
from conquiet.processor.settings import ProcessorSettings
from conquiet.processor.settlement import Settler
from conquiet.queue.codec import TOO_LARGE
from conquiet.runtime.context import RuntimeMessage

logger = logging.getLogger(__name__)


class Execution:
    """Handles messages for one host.

    Args:
        client: A client without retries; it stays the caller's.
        group: Our consumer group.
        consumer_id: The engine's name in it.
        routes: Handlers by event.
        keys: Keys by stream.
        pauses: What is paused.
        settler: How retries and dead letters are carried out.
        emitter: For ``ctx.emit``.
        jobs: Where states are kept, if they are.
        settings: The processor's.
    """

    def __init__(  # noqa: PLR0913 - ten neighbours, put together in one place
        self,
        client: redis.asyncio.Redis,
        *,
        group: str,
        consumer_id: str,
        routes: Mapping[str, Route],
        keys: Mapping[str, Keys],
        pauses: Pauses,
        settler: Settler,
        emitter: Emitter,
        jobs: JobRecorder | None,
        settings: ProcessorSettings,
    ) -> None:
        self._client = client
        self._group = group
        self._consumer_id = consumer_id
        self._routes = routes
        self._keys = keys
        self._pauses = pauses
        self._settler = settler
        self._emitter = emitter
        self._jobs = jobs
        self._settings = settings
        self._host = hostname()
        self._server_ahead_ms = 0

    async def __call__(self, message: RuntimeMessage, ctx: Delivery) -> None:
        """Handle one message. What it raises, the engine reports as failed; it is settled by then, if it can be."""
        try:
            envelope = from_payload(message.data, entry_id=message.id)
        except EnvelopeError as error:
            await self._bury(message, ctx, None, Reason.NOT_AN_ENVELOPE, note=error.reason)
            raise
        if envelope.group is not None and envelope.group != self._group:
            return  # another group's retry; ours has dealt with this message
        if envelope.delay_until_ms is not None and envelope.delay_until_ms > self._now_ms():
            await self._let_wait(message, ctx, envelope, f"={envelope.delay_until_ms}", JobState.DELAYED)
            return
        route = self._routes.get(envelope.event)
        if route is None:
            await self._bury(message, ctx, envelope, Reason.UNKNOWN_EVENT, note=_UNKNOWN)
            raise Reject(_UNKNOWN)
        if self._pauses.is_event_paused(message.stream, envelope.event) and await self._park(message, ctx, envelope):
            return
        rate = route.rate
        if rate is not None and not await self._has_turn(message, ctx, envelope, rate):
            return
        await (self._run if route.slots is None else self._run_in_slot)(message, ctx, envelope, route)

    async def exhausted(self, message: RuntimeMessage, ctx: Delivery) -> None:
        """Bury what was delivered too often: it kills whoever works on it."""
        try:
            envelope = from_payload(message.data, entry_id=message.id)
        except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not to come back
            envelope = None
        if envelope is not None and envelope.group not in {None, self._group}:
            await ctx.ack()  # another group's retry, which a dead letter of ours would bring back for us
            return
        await self._bury(message, ctx, envelope, Reason.DELIVERIES_EXHAUSTED, note=_EXHAUSTED)

    async def malformed(self, stream: str, entry_id: str, reason: str) -> None:
        """Bury an entry that is not JSON in one field ``data``, as it stands."""
        keys = self._keys[stream]
        fields = await script("entry").call(self._client, (stream,), (entry_id,), stream=stream, group=self._group)
        if not fields:
            return
        # What is only too large is kept whole: there is nothing else wrong with it, and it is nowhere else.
        most = None if reason == TOO_LARGE else _SHOWN
        raw = {_shown(name, most): _shown(value, most) for name, value in zip(fields[::2], fields[1::2], strict=True)}
        record = self._record(entry_id, None, Reason.MALFORMED, None)
        record.error, record.raw = reason, raw
        await self._settler.bury(keys, entry_id, encode_record(record))

    async def _run_in_slot(self, message: RuntimeMessage, ctx: Delivery, envelope: Envelope, route: Route) -> None:
        """Run it when the handler has a slot for it. The wait costs one of the engine's, but the message is leased."""
        assert route.slots is not None  # noqa: S101 - else it needs none
        if not await route.slots.acquire():
            # We stop, and it has not begun: to the end of the stream with it, for whoever reads there.
            await self._let_wait(message, ctx, envelope, "+0", JobState.WAITING)
            return
        try:
            await self._run(message, ctx, envelope, route)
        finally:
            route.slots.release()

    async def _run(self, message: RuntimeMessage, ctx: Delivery, envelope: Envelope, route: Route) -> None:
        if self._jobs is not None:
            await self._jobs.note(self._keys[message.stream], envelope, JobState.RUNNING)
        failure: Exception | None = None
        try:
            if (answer := await route.invoke(envelope, ctx, self._emitter, message.stream)) is not None:
                refuse_unawaited(answer)
        except asyncio.CancelledError as error:
            if _is_being_cancelled():
                raise  # by us: a forced stop. It is not done, and whoever claims it begins anew
            failure = HandlerCancelledError()
            failure.__cause__ = error
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            failure = error
        if failure is None:
            if self._jobs is not None:
                await self._jobs.note_later(self._keys[message.stream], envelope, JobState.SUCCEEDED)
            route.count(message.stream, "done")
            message.raw = b""  # it may wait for its acknowledgement a while; nobody needs it twice
            return
        await self._settle_failure(message, ctx, envelope, route, failure)
        # Raised although it is settled: the engine then tells its listeners that the attempt failed.
        raise failure

    async def _settle_failure(
        self, message: RuntimeMessage, ctx: Delivery, envelope: Envelope, route: Route, failure: Exception
    ) -> None:
        if message.acknowledged:
            # The handler gave its message away before it failed. There is nothing left to try again.
            route.count(message.stream, "failed_after_ack")
            if self._jobs is not None:
                await self._jobs.note(self._keys[message.stream], envelope, JobState.DEAD, failure)
            return
        match decide(failure, attempt=envelope.attempt, policy=route.retry, max_attempts=envelope.max_attempts):
            case RetryAt(delay_ms):
                await self._retry(message, ctx, envelope, delay_ms, failure)
                route.count(message.stream, "retry")
            case DeadLetter(reason):
                await self._bury(message, ctx, envelope, reason, failure)
                route.count(message.stream, "dead")
            case Done():  # pragma: no cover - there was a failure
                return

    async def _retry(
        self, message: RuntimeMessage, ctx: Delivery, envelope: Envelope, delay_ms: int, failure: Exception
    ) -> None:
        payload = next_attempt(
            parts_of(message.raw), envelope, group=self._group, entry_id=message.id, failed_ms=self._now_ms()
        )
        with ctx.leaving():
            await self._settler.reschedule(self._keys[message.stream], message.id, f"+{delay_ms}", joined(payload))
            ctx.mark_acknowledged()
        if self._jobs is not None:
            await self._jobs.note(self._keys[message.stream], envelope, JobState.FAILED, failure)

    async def _let_wait(
        self, message: RuntimeMessage, ctx: Delivery, envelope: Envelope, when: str, state: JobState
    ) -> None:
        payload = same_attempt(parts_of(message.raw), envelope, group=self._group, entry_id=message.id)
        with ctx.leaving():
            await self._settler.reschedule(self._keys[message.stream], message.id, when, joined(payload))
            ctx.mark_acknowledged()
        if self._jobs is not None:
            await self._jobs.note(self._keys[message.stream], envelope, state)

    async def _bury(
        self,
        message: RuntimeMessage,
        ctx: Delivery,
        envelope: Envelope | None,
        reason: Reason,
        failure: Exception | None = None,
        note: str = "",
    ) -> None:
        record = self._record(message.id, envelope, reason, failure)
        record.error = record.error or note
        record.deliveries = message.delivery_count
        with ctx.leaving():
            await self._settler.bury(self._keys[message.stream], message.id, encode_record(record, message.raw))
            ctx.mark_acknowledged()
        logger.warning(
            "message is a dead letter",
            extra={
                "stream": printable(message.stream),
                "message_id": message.id,
                "event": printable(record.event),
                "reason": reason.value,
                "error": record.error_type,
            },
        )
        if self._jobs is not None and envelope is not None:
            await self._jobs.note(self._keys[message.stream], envelope, JobState.DEAD, failure)

    def _record(
        self, entry_id: str, envelope: Envelope | None, reason: Reason, failure: Exception | None
    ) -> DeadRecord:
        told = describe(failure, store_text=self._settings.store_error_text)
        now_ms = self._now_ms()
        record = DeadRecord(
            reason=reason.value,
            id=entry_id,
            entry_id=entry_id,
            group=self._group,
            host=self._host,
            consumer=self._consumer_id,
            failed_ms=now_ms,
            first_failed_ms=now_ms,
        )
        if told is not None:
            record.error_type, record.error, record.traceback = told.type, told.text, told.traceback
        if envelope is not None:
            record.id, record.event, record.attempts = envelope.id, envelope.event, envelope.attempt
            record.emitted_ms = envelope.emitted_ms
            record.first_failed_ms = envelope.first_failed_ms or now_ms
        return record

    async def _park(self, message: RuntimeMessage, ctx: Delivery, envelope: Envelope) -> bool:
        """Put a message of a paused event aside. False if it is not paused after all."""
        keys = self._keys[message.stream]
        payload = joined(same_attempt(parts_of(message.raw), envelope, group=self._group, entry_id=message.id))
        with ctx.leaving():
            answer = await script("park").call(
                self._client,
                (keys.stream, keys.paused, keys.parked, keys.parked_event(envelope.event)),
                (self._group, self._consumer_id, envelope.event, message.id, payload),
                stream=keys.stream,
                group=self._group,
            )
            if answer == _NOT_PAUSED:
                return False
            ctx.mark_acknowledged()
        return True

    async def _has_turn(self, message: RuntimeMessage, ctx: Delivery, envelope: Envelope, rate: RateLimit) -> bool:
        """True if the message's turn is now. One that was missed (a pause, all hosts down) is void."""
        if envelope.reserved and not rate.has_lapsed(envelope.reserved_ms, now_ms=self._now_ms()):
            return True
        return await self._take_turn(message, ctx, envelope, rate)

    async def _take_turn(self, message: RuntimeMessage, ctx: Delivery, envelope: Envelope, rate: RateLimit) -> bool:
        """Take a turn under the event's rate limit. False if it is a later one, and the message waits for it."""
        keys = self._keys[message.stream]
        stored = joined(
            same_attempt(parts_of(message.raw), envelope, group=self._group, entry_id=message.id, reserved=True)
        )
        with ctx.leaving():
            wait_ms = await script("turn").call(
                self._client,
                (keys.stream, keys.delayed, keys.wake, keys.rate(envelope.event)),
                (self._group, self._consumer_id, message.id, stored, rate.turn_us, rate.burst),
                stream=keys.stream,
                group=self._group,
            )
            if wait_ms == 0:
                return True
            ctx.mark_acknowledged()
        if self._jobs is not None and wait_ms > 0:
            await self._jobs.note(keys, envelope, JobState.DELAYED)
        return False

    def withdraw(self) -> None:
        """Let go of what waits for a slot of its handler: we stop, and it is not to begin here."""
        for route in self._routes.values():
            if route.slots is not None:
                route.slots.withdraw()

    def flush_counts(self) -> None:
        """Hand what was counted to the metrics."""
        for route in self._routes.values():
            route.flush_counts()

    def note_server_time(self, ahead_ms: int) -> None:
        """Learn how far the server's clock is ahead of ours: times in messages are the server's."""
        self._server_ahead_ms = ahead_ms

    def _now_ms(self) -> int:
        return int(time.time() * 1000) + self._server_ahead_ms


_NOT_PAUSED = 2
_SHOWN = 65_536
_UNKNOWN = "no handler is registered for its event"
_EXHAUSTED = "it was delivered too often without ever being settled: whoever worked on it was killed or hung"


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _shown(raw: bytes, most: int | None) -> str:
    """Bytes of an entry that could not be decoded, as text that JSON can hold."""
    return raw[:most].decode(errors="backslashreplace")
