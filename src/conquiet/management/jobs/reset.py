"""Delete the waiting, delayed, parked and dead jobs of a stream. Running jobs are not changed.

Deletes in steps of a bounded size, and only jobs that existed at the beginning. Groups, pauses and the ids of emitted
messages are kept.
"""

from dataclasses import dataclass

from conquiet.core.redaction import printable
from conquiet.errors import ConfigurationError
from conquiet.management.jobs.reader import JobReader
from conquiet.management.models import Report

_STEP = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetReport(Report):
    """Jobs that a reset removed, or would remove at most in a dry run.

    Attributes:
        stream: The stream.
        entries: Entries of the stream that were not pending in any group, handled ones included.
        behind: Messages that wait behind others of their key.
        delayed: Delayed and retrying jobs.
        parked: Parked jobs.
        dead: Dead letters.
        dry_run: True if nothing was removed.
    """

    stream: str
    entries: int = 0
    behind: int = 0
    delayed: int = 0
    parked: int = 0
    dead: int = 0
    dry_run: bool = False


async def reset(reader: JobReader, *, dry_run: bool) -> ResetReport:
    """Delete the jobs of the reader's stream; see ``JobAdmin.reset``. The caller has checked the confirmation."""
    keys = reader.keys
    events = [event.decode(errors="backslashreplace") for event in await reader.parked_events()]
    lists = [keys.parked_event(event) for event in events]
    sizes = await reader.call("job_sizes", (keys.stream, keys.delayed, keys.dead, *lists), ())
    entries, delayed, dead, *parked = sizes
    if dry_run:
        pending = sum(group.pending for group in await reader.groups())
        return ResetReport(
            stream=keys.stream,
            entries=max(0, entries - pending),
            behind=(await reader.order.report(limit=1)).waiting,
            delayed=delayed,
            parked=sum(parked),
            dead=dead,
            dry_run=True,
        )
    # First, or the deletion of an entry would release the next message of its key.
    behind = await _empty_key_queues(reader)
    report = ResetReport(
        stream=keys.stream,
        behind=behind,
        entries=await _empty_stream(reader),
        delayed=await _empty(reader, keys.delayed, delayed),
        parked=sum([await _empty(reader, name, size) for name, size in zip(lists, parked, strict=True)]),
        dead=await _empty(reader, keys.dead, dead),
    )
    if (await reader.order.report(limit=1)).holders:
        await reader.order.release_stuck()  # keys of deleted messages; running messages keep theirs
    return report


def require_confirmation(stream: str, confirm: str | None) -> None:
    """Raise unless ``confirm`` is the name of the stream."""
    if confirm != stream:
        raise ConfigurationError(
            f"a reset deletes the jobs of stream {printable(stream)!r} permanently: confirm it by the stream's name, "
            "or check first with a dry run"
        )


async def _empty_key_queues(reader: JobReader) -> int:
    left, deleted = 1, 0
    while left:
        left, gone = await reader.call("job_reset_keys", (reader.keys.order, reader.keys.waiting_keys), (_STEP,))
        deleted += gone
    return deleted


async def _empty_stream(reader: JobReader) -> int:
    end = f"{await reader.now_ms()}-0"
    position, deleted = "-", 0
    while True:
        seen, gone, last = await reader.call("job_reset_stream", (reader.keys.stream,), (position, end, _STEP))
        deleted += int(gone)
        if seen < _STEP:
            return deleted
        position = f"({last.decode()}"


async def _empty(reader: JobReader, key: str, size: int) -> int:
    deleted = 0
    while deleted < size:
        gone = await reader.call("job_reset_rest", (key,), (min(_STEP, size - deleted),))
        if not gone:
            break
        deleted += gone
    return deleted
