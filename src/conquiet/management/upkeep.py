"""Keeping streams and groups tidy without losing anything: retiring consumers, trimming streams."""

from conquiet.errors import NoSuchStreamError, OperatorError
from conquiet.kernel.redaction import printable
from conquiet.kernel.validation import require_seconds, require_text
from conquiet.management.models import Retired, Trimmed
from conquiet.management.overview import ALIVE_MS, describe_stream, require_group
from conquiet.management.scripts import RETIRE, TRIM
from conquiet.management.server import Server
from conquiet.queue.replies import text

_STEP = 1_000
_TRIM_STEP = 10_000


def retire(
    server: Server, stream: str, group: str, consumer: str, *, heir: str = "", min_idle_ms: int = ALIVE_MS
) -> Retired:
    """Delete a consumer that is gone; first hand what it has pending to ``heir``, if one is named.

    Entries, their idle times and their delivery counts are kept. Several steps of at most 1,000 entries;
    if this is interrupted, what was handed over stays with the heir and the consumer is still there.

    Raises:
        OperatorError: It is alive, or has pending entries and no heir was named.
        NoSuchStreamError: There is no such stream, group or consumer.
    """
    require_text("consumer", consumer)
    require_group(describe_stream(server, stream), group)
    if heir == consumer:
        raise OperatorError("a consumer cannot be its own heir", stream=stream)
    moved = 0
    while True:
        state, number = server.call(
            "EVAL", RETIRE, 1, stream, group, consumer, heir, min_idle_ms, _STEP, stream=stream, group=group
        )
        match text(state):
            case "more":
                moved += number
            case "retired":
                return Retired(consumer, heir or None, moved + number)
            case "alive":
                raise OperatorError(
                    f"consumer {printable(consumer)!r} asked for work {number / 1000:.1f} s ago, so it may be alive; "
                    "stop it first, or say after how long it counts as gone (--min-idle)",
                    stream=stream,
                )
            case "pending":
                raise OperatorError(
                    f"consumer {printable(consumer)!r} has {number} entries pending, which would be lost with it; "
                    "name an heir for them (--heir)",
                    stream=stream,
                )
            case _:
                raise NoSuchStreamError(
                    f"group {printable(group)!r} of {printable(stream)!r} has no consumer {printable(consumer)!r}",
                    stream=stream,
                )


def trim(server: Server, stream: str, *, older_than_s: float | None = None, dry_run: bool = False) -> Trimmed:
    """Remove entries that no group needs any more; never one that is pending or not yet delivered.

    What is needed is found out in the same step that removes, 10,000 entries at a time at most, so
    that the server is never busy for long.

    Args:
        server: Where.
        stream: Which.
        older_than_s: Keep what is younger than this, needed or not.
        dry_run: Only say from which id on entries are needed.

    Raises:
        ConfigurationError: ``older_than_s`` is no number of seconds.
        OperatorError: The stream has no group, so nobody says what is needed.
    """
    keep_s = None if older_than_s is None else require_seconds("older_than_s", older_than_s, zero_allowed=True)
    server.require_stream(stream)
    bound = "" if keep_s is None else f"{round(max(0.0, server.now_ms() - keep_s * 1000))}-0"
    below, removed = _step(server, stream, bound, "look")
    if not dry_run:
        while step := _step(server, stream, bound, "approximate")[1]:
            removed += step
        # Whole nodes are gone; what is left below the bound is less than one node.
        below, last = _step(server, stream, bound, "exact")
        removed += last
    length = int(server.call("XLEN", stream, stream=stream))
    return Trimmed(below, None if dry_run else removed, length)


def _step(server: Server, stream: str, bound: str, mode: str) -> tuple[str, int]:
    state, below, removed = server.call("EVAL", TRIM, 1, stream, bound, mode, _TRIM_STEP, stream=stream)
    if text(state) == "no groups":
        raise OperatorError(
            f"stream {printable(stream)!r} has no consumer group, so nobody says what is still needed; "
            "nothing was removed",
            stream=stream,
        )
    return text(below), int(removed)
