"""Carry out retries, deferrals and dead letters, many in one round trip.

    decided ──▶ due ──▶ one script per stream ──▶ scheduled or dead-lettered, and acknowledged
                 ▲            │
                 └────────────┴── reply lost: sent again, which is idempotent

A script acts only on an entry that is still pending for this consumer, and removes it from the pending list in the same
step. So a repeated call finds nothing to do, and a host that was too slow (its message was claimed) changes nothing.
The stored message is built from the bytes that were read, because a handler may change ``ctx.data``.

See docs/decisions/0016 and 0050.
"""

import asyncio
import math
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, assert_never

from conquiet.core.identity import hostname
from conquiet.core.micro_batcher import MicroBatcher
from conquiet.core.settlement import DeadLetter, Defer, RetryLater
from conquiet.metrics.registry import (
    PROCESSOR_DEAD_LETTERS_EXPIRED_TOTAL,
    PROCESSOR_OWNERSHIP_LOST_TOTAL,
    PROCESSOR_SETTLE_REPEATS_TOTAL,
)
from conquiet.metrics.safety import count
from conquiet.processor.dead_letter_record import DeadRecord, describe, encode_record
from conquiet.processor.envelope import Envelope, encode_raw, next_attempt, same_attempt, split_raw, with_key_first
from conquiet.processor.failed_attempts import add_attempt, describe_attempt
from conquiet.processor.foreign import fields_of
from conquiet.processor.jobs import JobState
from conquiet.processor.keys import Keys
from conquiet.processor.ordering import NO_TURN, turn_of
from conquiet.processor.parts import ProcessorParts
from conquiet.processor.policy import RateLimit, milliseconds
from conquiet.processor.scripts import Arg, Script, move, script
from conquiet.processor.settlement_log import report_dead, report_retry
from conquiet.redis_transport.client import is_cluster
from conquiet.redis_transport.errors import RedisError, ResponseError, translate
from conquiet.redis_transport.routing import split_by_slot
from conquiet.redis_transport.scripts import run_many
from conquiet.runtime.message import AckScript, RuntimeMessage

_NOT_PAUSED = 2
_TO_CANCEL = 3


class Step(Enum):
    """Result of a conditional move. TO_CANCEL: the message was left, because cancellation was requested."""

    MOVED = "moved"
    LEFT = "left"
    TO_CANCEL = "to cancel"


_STEPS = {0: Step.LEFT, 1: Step.MOVED, _TO_CANCEL: Step.TO_CANCEL}


@dataclass(slots=True)
class _Item:
    keys: Keys
    args: tuple[Arg, ...]
    script: str
    done: "asyncio.Future[int]"


def _duration_s(message: RuntimeMessage) -> float:
    """Return how long the handler of a message has run, 0 if it was not called."""
    return time.monotonic() - message.started_at if message.started_at else 0.0


class ProcessorSettler:
    """Settles messages of one consumer of one group.

    Args:
        parts: The parts that a processor shares.
    """

    def __init__(self, parts: ProcessorParts) -> None:
        self._log_tracebacks = parts.log_tracebacks
        self._client, self._group, self._consumer_id = parts.client, parts.group, parts.consumer_id
        self._keys, self._settings = parts.keys, parts.settings
        self._clock, self._jobs = parts.clock, parts.jobs
        self._host = hostname()
        self._ack_scripts: dict[str, AckScript] = {}
        limit = parts.settings.chunk_size
        self._due: MicroBatcher[_Item] = MicroBatcher(self._flush, limit=limit, name="conquiet-settler")

    def settle(self, message: RuntimeMessage, settlement: RetryLater | Defer | DeadLetter) -> Coroutine[Any, Any, bool]:
        """Store the message elsewhere and acknowledge its entry, in one step.

        Returns:
            False if cancellation of its job was requested; then nothing was done.

        Raises:
            QueueError: The server cannot be reached or refuses. The entry may still be pending.
        """
        match settlement:
            case RetryLater():
                return self._retry(message, settlement)
            case Defer():
                return self._defer(message, settlement)
            case DeadLetter():
                return self._dead_letter(message, settlement)
            case _:
                assert_never(settlement)

    async def park(self, message: RuntimeMessage, envelope: Envelope) -> Step:
        """Park a message of a paused event. It is left if the event is no longer paused."""
        keys = self._keys[message.stream]
        names = (keys.stream, keys.paused, keys.parked, keys.parked_event(envelope.event), keys.cancel)
        args = (self._group, self._consumer_id, envelope.event, message.id, self._same_attempt(message, envelope))
        left = {_NOT_PAUSED: Step.LEFT, _TO_CANCEL: Step.TO_CANCEL}
        reply = await move(self._client, message, "park", names, args, group=self._group, left=left)
        return left.get(reply, Step.MOVED)

    async def reserve_rate(self, message: RuntimeMessage, envelope: Envelope, rate: RateLimit) -> Step:
        """Reserve a start under the event's rate limit. The message is moved if it must wait."""
        keys = self._keys[message.stream]
        names = (keys.stream, keys.delayed, keys.wake, keys.rate(envelope.event), keys.cancel)
        payload = self._same_attempt(message, envelope, reserved=True)
        args = (self._group, self._consumer_id, message.id, payload, rate.interval_us, rate.burst)
        left = {0: Step.LEFT, -_TO_CANCEL: Step.TO_CANCEL}
        wait_ms = await move(self._client, message, "reserve_rate", names, args, group=self._group, left=left)
        if self._jobs is not None and wait_ms > 0:
            await self._jobs.record(keys, envelope, JobState.DELAYED)
        return left.get(wait_ms, Step.MOVED)

    def acknowledge_with_turn(self, message: RuntimeMessage, envelope: Envelope) -> None:
        """Let a script acknowledge the message, if it has a ticket, and release its key. Sends nothing."""
        turn, keys = turn_of(envelope), self._keys[message.stream]
        if turn is NO_TURN:
            return
        known = self._ack_scripts.get(keys.stream)
        if known is None:
            finish = script("finish")
            names = tuple(finish.declared((keys.stream, keys.order)))
            known = AckScript(finish.source, names, (self._group, self._consumer_id))  # checks that we own the entry
            self._ack_scripts[keys.stream] = known
        message.ack_script, message.ack_args = known, turn

    async def join_key(self, message: RuntimeMessage, envelope: Envelope) -> None:
        """Append a message with a key that was not written by ``emit`` to the queue of its key."""
        keys = self._keys[message.stream]
        payload = with_key_first(split_raw(message.raw), envelope, group=self._group, entry_id=message.id)
        args = (self._group, self._consumer_id, message.id, encode_raw(payload))
        await move(self._client, message, "join", (keys.stream, keys.order), args, group=self._group)

    def reschedule(
        self, keys: Keys, entry_id: str, when: str, payload: bytes, turn: tuple[str, str] = NO_TURN
    ) -> Coroutine[Any, Any, Step]:
        """Acknowledge an entry and store ``payload`` as delayed (``when`` as in ``emit.lua``), in one step.

        ``turn`` (key and ticket) is released: the next message of the key runs first.

        Returns:
            LEFT if another consumer owns the entry, TO_CANCEL if cancellation was requested; then nothing was done.

        Raises:
            QueueError: The server cannot be reached or refuses. The entry may still be pending.
        """
        args = (entry_id, when, payload)
        return self._send_soon(keys, args if turn is NO_TURN else (*args, *turn), "reschedule")

    def dead_letter(
        self, keys: Keys, entry_id: str, record: bytes, turn: tuple[str, str] = NO_TURN
    ) -> Coroutine[Any, Any, Step]:
        """Acknowledge an entry and write its dead letter, in one step. Returns and raises as ``reschedule``."""
        args = (entry_id, record)
        return self._send_soon(keys, args if turn is NO_TURN else (*args, *turn), "dead_letter")

    async def _retry(self, message: RuntimeMessage, settlement: RetryLater) -> bool:
        envelope: Envelope = message.decoded
        keys = self._keys[message.stream]
        now_ms = self._clock.now_ms()
        failed = describe_attempt(
            envelope.attempt, settlement.failure, ended_ms=now_ms, duration_s=_duration_s(message)
        )
        envelope.failures = add_attempt(envelope.failures, failed)
        payload = next_attempt(
            split_raw(message.raw), envelope, group=self._group, entry_id=message.id, failed_ms=now_ms
        )
        turn = turn_of(envelope) if settlement.yields_turn else NO_TURN
        if turn is not NO_TURN:
            del payload["ticket"]
        step = await self.reschedule(keys, message.id, f"+{settlement.delay_ms}", encode_raw(payload), turn)
        if step is Step.TO_CANCEL:
            return False
        if step is Step.MOVED:
            report_retry(message, envelope, settlement, tracebacks=self._log_tracebacks)
        if self._jobs is not None:
            await self._jobs.record(keys, envelope, JobState.FAILED, settlement.failure)
        return True

    async def _defer(self, message: RuntimeMessage, settlement: Defer) -> bool:
        envelope: Envelope = message.decoded
        keys = self._keys[message.stream]
        until_ms, since_ms = settlement.until_ms, settlement.unknown_since_ms
        when = f"+{settlement.delay_ms}" if until_ms is None else f"={until_ms}"
        payload = self._same_attempt(message, envelope, unknown_since_ms=since_ms)
        if await self.reschedule(keys, message.id, when, payload) is Step.TO_CANCEL:
            return False
        if self._jobs is not None:
            at_once = until_ms is None and not settlement.delay_ms
            await self._jobs.record(keys, envelope, JobState.WAITING if at_once else JobState.DELAYED)
        return True

    async def _dead_letter(self, message: RuntimeMessage, settlement: DeadLetter) -> bool:
        envelope: Envelope | None = message.decoded
        keys = self._keys[message.stream]
        record = self._record(message, envelope, settlement)
        if message.malformed:
            raw = await fields_of(self._client, message.stream, message.id, message.malformed)
            if raw is None:
                return True  # the entry was deleted
            record.raw = raw
            encoded = encode_record(record)
        else:
            encoded = encode_record(record, message.raw)
        turn = NO_TURN if envelope is None else turn_of(envelope)
        step = await self.dead_letter(keys, message.id, encoded, turn)
        if step is Step.TO_CANCEL and envelope is not None:
            return False
        if step is not Step.LEFT:  # else its new owner settles and reports it
            report_dead(message, envelope, settlement, tracebacks=self._log_tracebacks)
        if self._jobs is not None and envelope is not None:
            await self._jobs.record(keys, envelope, JobState.DEAD, settlement.failure)
        return True

    def _same_attempt(
        self,
        message: RuntimeMessage,
        envelope: Envelope,
        *,
        reserved: bool = False,
        unknown_since_ms: int | None = None,
    ) -> bytes:
        payload = same_attempt(
            split_raw(message.raw), envelope, group=self._group, entry_id=message.id, reserved=reserved
        )
        if unknown_since_ms is not None:
            payload["unknown_since_ms"] = unknown_since_ms
        return encode_raw(payload)

    def _record(self, message: RuntimeMessage, envelope: Envelope | None, settlement: DeadLetter) -> DeadRecord:
        described = describe(settlement.failure, store_text=self._settings.store_error_text)
        now_ms = self._clock.now_ms()
        record = DeadRecord(
            reason=settlement.reason,
            id=message.id,
            entry_id=message.id,
            group=self._group,
            host=self._host,
            consumer=self._consumer_id,
            deliveries=message.delivery_count,
            failed_ms=now_ms,
            first_failed_ms=now_ms,
        )
        if described is not None:
            record.error_type, record.error, record.traceback = described.type, described.text, described.traceback
        record.error = record.error or settlement.note
        if envelope is not None:
            record.id, record.event, record.attempts = envelope.id, envelope.event, envelope.attempt
            record.emitted_ms = envelope.emitted_ms
            record.duration_ms = math.ceil(_duration_s(message) * 1000)  # 0 means that no handler ran
            record.first_failed_ms = envelope.first_failed_ms or now_ms
        return record

    async def _send_soon(self, keys: Keys, args: tuple[Arg, ...], name: str) -> Step:
        item = _Item(keys, args, name, asyncio.get_running_loop().create_future())
        self._due.add(item)
        answer = await item.done
        if answer == 0:
            count(PROCESSOR_OWNERSHIP_LOST_TOTAL, keys.stream)
        return _STEPS[answer]

    async def _flush(self, batch: list[_Item]) -> None:
        by_script: dict[tuple[Keys, str, int], list[_Item]] = {}
        for item in batch:
            by_script.setdefault((item.keys, item.script, len(item.args)), []).append(item)
        calls = [self._call(keys, name, words, items) for (keys, name, words), items in by_script.items()]
        try:
            # By slot in a cluster: an unavailable node delays only the settlements of its streams.
            slots = split_by_slot([call.stream for call in calls], in_cluster=is_cluster(self._client))
            await asyncio.gather(*(self._send([call for call in calls if call.stream in those]) for those in slots))
        finally:
            for item in batch:  # a cancelled flush must not leave a caller waiting
                if not item.done.done():
                    item.done.cancel()

    def _call(self, keys: Keys, name: str, words: int, items: list[_Item]) -> "_Call":
        args: list[Arg] = [self._group, self._consumer_id]
        if name == "dead_letter":
            age_s = self._settings.dead_letters_max_age_s
            args += [self._settings.dead_letters_max or 0, 0 if age_s is None else max(1, milliseconds(age_s))]
            names: tuple[str, ...] = (keys.stream, keys.dead, keys.order, keys.cancel)
        else:
            names = (keys.stream, keys.delayed, keys.wake, keys.order, keys.cancel)
        args.append(words)
        for item in items:
            args += item.args
        return _Call(script(name), names, args, keys.stream, items)

    async def _send(self, calls: Sequence["_Call"]) -> None:
        """Send until a reply arrives, at most ``settle_attempts`` times."""
        for failures in range(1, self._settings.settle_attempts + 1):
            try:
                replies = await self._exchange(calls)
            except (RedisError, OSError) as error:
                if failures == self._settings.settle_attempts:
                    for call in calls:
                        call.fail(error, self._group)
                    return
                for call in calls:
                    count(PROCESSOR_SETTLE_REPEATS_TOTAL, call.stream)
                await asyncio.sleep(self._settings.settle_backoff.delay_s(failures))
            else:
                for call, reply in zip(calls, replies, strict=True):
                    call.resolve(reply, self._group)
                return

    async def _exchange(self, calls: Sequence["_Call"]) -> list[Any]:
        return await run_many(self._client, [(call.script, call.names, call.args) for call in calls])


@dataclass(slots=True)
class _Call:
    script: Script
    names: tuple[str, ...]
    args: list[Arg]
    stream: str
    items: list[_Item]

    def resolve(self, reply: Any, group: str) -> None:
        if isinstance(reply, ResponseError):
            self.fail(reply, group)
            return
        if self.items[0].script == "dead_letter":
            count(PROCESSOR_DEAD_LETTERS_EXPIRED_TOTAL, self.stream, n=reply[0])
            reply = reply[1:]
        for item, answer in zip(self.items, reply, strict=True):
            if not item.done.done():
                item.done.set_result(answer)

    def fail(self, cause: RedisError | OSError, group: str) -> None:
        for item in self.items:
            if not item.done.done():
                error = translate(cause, stream=self.stream, group=group, command=self.script.action)
                item.done.set_exception(error)
