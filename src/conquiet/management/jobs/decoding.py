"""Decode stored messages into ``JobReport``. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from conquiet.core.causation import read_cause
from conquiet.core.json_codec import CodecError, decode_payload
from conquiet.management.jobs.models import JobAttempt, JobPhase, JobReport, RelatedMessage
from conquiet.processor.dead_letters import DeadMessage
from conquiet.processor.envelope import Envelope, EnvelopeError, from_payload
from conquiet.processor.failed_attempts import FailedAttempt, read_attempts
from conquiet.processor.policy import LONGEST_MS
from conquiet.redis_transport.ids import milliseconds_of

_LARGEST = 2**30
_NO_MESSAGE = "not_an_envelope"


class JobDecoder:
    """Decodes the messages of one stream.

    Args:
        stream: The stream.
        group: The selected group; empty for none.
        with_data: Include the data of each message.
    """

    def __init__(self, stream: str, group: str, *, with_data: bool) -> None:
        self._stream = stream
        self._group = group
        self._with_data = with_data

    def entry(self, entry_id: bytes, fields: Sequence[bytes], now_ms: int) -> JobReport | None:
        """Return a waiting job; None if the entry is a retry for another group."""
        place = entry_id.decode()
        raw = fields[1] if len(fields) == 2 else b""  # noqa: PLR2004 - one name, one value
        return self._report(raw, JobPhase.WAITING, now_ms, place=place)

    def running(self, row: Sequence[Any], now_ms: int) -> JobReport | None:
        """Return a delivered job from a row of ``job_running.lua``; None if its entry was deleted."""
        entry_id, consumer, idle_ms, deliveries, fields = row
        if not fields:
            return None
        raw = fields[1] if len(fields) == 2 else b""  # noqa: PLR2004 - the same
        return self._report(
            raw,
            JobPhase.RUNNING,
            now_ms,
            place=entry_id.decode(),
            consumer=consumer.decode(errors="backslashreplace"),
            idle_s=idle_ms / 1000,
            deliveries=deliveries,
        )

    def delayed(self, raw: bytes, due: bytes, now_ms: int) -> JobReport | None:
        """Return a job of the delayed set: RETRYING if an attempt has failed, else DELAYED."""
        return self._report(raw, JobPhase.DELAYED, now_ms, due_ms=_due_ms(due))

    def parked(self, raw: bytes, now_ms: int, *, event: str = "") -> JobReport | None:
        """Return a job that waits for the end of a pause. ``event`` is its list, for unreadable bytes."""
        report = self._report(raw, JobPhase.PARKED, now_ms)
        return replace(report, event=event) if report is not None and report.reason == _NO_MESSAGE else report

    def behind(self, raw: bytes, now_ms: int, *, key: str = "") -> JobReport | None:
        """Return a job that waits behind others of its key; its place is the key in the form of the scripts.

        ``key`` is the place of unreadable bytes.
        """
        envelope = read_envelope(raw, "")
        report = self._report(raw, JobPhase.BEHIND, now_ms)
        return None if report is None else replace(report, place=key if envelope is None else envelope.key_text)

    def dead(self, dead: DeadMessage, now_ms: int) -> JobReport | None:
        """Return a dead job; None if it belongs to another group."""
        record = dead.record
        if self._group and record.group and record.group != self._group:
            return None
        since_ms = record.emitted_ms or dead.died_ms
        payload = record.payload or {}
        key, data = payload.get("key"), payload.get("data")
        return JobReport(
            id=record.id,
            event=record.event,
            phase=JobPhase.DEAD,
            stream=self._stream,
            group=record.group,
            place=dead.id,
            attempt=max(1, record.attempts),
            emitted_ms=record.emitted_ms,
            age_s=max(0, now_ms - since_ms) / 1000,
            consumer=record.consumer,
            deliveries=record.deliveries,
            error_type=record.error_type,
            reason=record.reason,
            key=key if isinstance(key, str) else "",
            caused_by=cause_of(payload.get("headers")),
            attempts=_attempts_of(dead),
            data=(data if isinstance(data, dict) else record.payload) if self._with_data else None,
        )

    def _report(self, raw: bytes, phase: JobPhase, now_ms: int, *, place: str = "", **facts: Any) -> JobReport | None:
        envelope = read_envelope(raw, place)
        if envelope is None:
            age_s = max(0, now_ms - milliseconds_of(place)) / 1000 if place else 0.0
            return JobReport(
                id=place,
                event="",
                phase=phase,
                stream=self._stream,
                group=self._group,
                place=place,
                reason=_NO_MESSAGE,
                age_s=age_s,
                raw_payload=raw,
                **facts,
            )
        if self._group and envelope.group not in {None, self._group}:
            return None
        if phase is JobPhase.DELAYED and envelope.attempt > 1:
            phase = JobPhase.RETRYING
        since_ms = envelope.emitted_ms or (milliseconds_of(place) if place else now_ms)
        return JobReport(
            id=envelope.id,
            event=envelope.event,
            phase=phase,
            stream=self._stream,
            group=envelope.group or (self._group if phase is JobPhase.RUNNING else ""),
            place=place,
            attempt=envelope.attempt,
            emitted_ms=envelope.emitted_ms,
            age_s=max(0, now_ms - since_ms) / 1000,
            key=envelope.key or "",
            caused_by=cause_of(envelope.headers),
            attempts=as_attempts(envelope.failures),
            data=envelope.data if self._with_data else None,
            raw_payload=raw,
            **facts,
        )


def read_envelope(raw: bytes, place: str) -> Envelope | None:
    """Decode an envelope; None if the bytes are not an envelope."""
    try:
        return from_payload(decode_payload(raw, max_bytes=_LARGEST), entry_id=place or "0-0")
    except (CodecError, EnvelopeError):
        return None


def _due_ms(score: bytes) -> int:
    """Return the due time of a score of the delayed set. Another program may have stored an infinite one."""
    return int(min(max(float(score), 0.0), LONGEST_MS))


def cause_of(headers: Any) -> RelatedMessage | None:
    """Return the message that caused this one, from its headers."""
    found = read_cause(headers if isinstance(headers, Mapping) else None)
    return None if found is None else RelatedMessage(found.place, found.id)


def as_attempts(failures: Sequence[FailedAttempt]) -> tuple[JobAttempt, ...]:
    """Convert failed attempts for a report."""
    return tuple(
        JobAttempt(one.attempt, one.ended_ms, in_seconds(one.duration_ms), one.error_type, one.frames)
        for one in failures
    )


def _attempts_of(dead: DeadMessage) -> tuple[JobAttempt, ...]:
    """Return the attempts of a dead letter: the attempts in its message, and the last one."""
    record = dead.record
    earlier = as_attempts(read_attempts((record.payload or {}).get("failures")))
    if not record.attempts:
        return earlier
    took_s = in_seconds(record.duration_ms or None)
    return (*earlier, JobAttempt(record.attempts, record.failed_ms, took_s, record.error_type or record.reason))


def in_seconds(milliseconds: int | None) -> float | None:
    """Return milliseconds as seconds; None if unknown."""
    return None if milliseconds is None else milliseconds / 1000
