"""Remove consumers and trim streams without losing entries. Each step is one script, see docs/decisions/0011."""

from contextlib import suppress
from typing import TYPE_CHECKING

from conquiet.core.redaction import printable
from conquiet.core.validation import require_seconds, require_text
from conquiet.errors import NoSuchStreamError, OperatorError
from conquiet.management.liveness import ALIVE_S, server_counts_attempts
from conquiet.management.models import RemovalReport, TrimReport
from conquiet.management.overview import describe_key, describe_stream, require_group
from conquiet.management.partitions import existing_partitions, partition_keys
from conquiet.management.redis_admin import RedisAdmin
from conquiet.redis_transport.ids import parse_id
from conquiet.redis_transport.liveness import liveness_key, registry_key
from conquiet.redis_transport.replies import text
from conquiet.redis_transport.retention_scripts import REMOVE_CONSUMER, TRIM

if TYPE_CHECKING:
    from conquiet.redis_transport.commands import Word

_STEP = 1_000
_TRIM_STEP = 10_000


def remove_consumer(
    server: RedisAdmin,
    stream: str,
    group: str,
    consumer: str,
    *,
    new_owner: str = "",
    min_idle_s: float = ALIVE_S,
    force: bool = False,
) -> RemovalReport:
    """Delete a consumer that is proved dead, after its pending entries were transferred to ``new_owner``, if given.

    A consumer with a liveness key is alive. A registered consumer without its key is dead. For other consumers (a
    ``QueueConsumer``, a program of another library) an idle time of at least ``min_idle_s`` and a minute proves the
    death on Redis 7.2 or newer and on Valkey. Before Redis 7.2 no proof exists: the caller makes sure that the consumer
    is stopped, and passes ``force``. ``force`` overrides neither the key nor ``min_idle_s``.

    Entries, their idle times and their delivery counts are kept. Entries are transferred in steps of at most 1,000. If
    the call is interrupted, transferred entries remain with the new owner and the consumer still exists.

    Raises:
        OperatorError: It is alive, is not proved dead, or has pending entries and no new owner was given.
        NoSuchStreamError: There is no such stream, group or consumer.
    """
    require_text("consumer", consumer)
    require_seconds("min_idle_s", min_idle_s, zero_allowed=True)
    facts = require_group(describe_stream(server, stream), group)
    if new_owner == consumer:
        raise OperatorError("a consumer cannot be its own new owner", stream=stream)
    counts = server_counts_attempts(server)
    proof = "1" if force or (counts and min_idle_s >= ALIVE_S) else ""
    words: tuple[Word, ...] = (group, consumer, new_owner, round(min_idle_s * 1000), _STEP, proof)
    names = [key.decode() for key in partition_keys(server, stream)]
    if len(names) > 1 and any(one.name == consumer for one in facts.consumers):
        # It may be a consumer of some partitions only.
        names = [name for name in names if _has_consumer(server, name, group, consumer)]
    moved = sum(_remove(server, name, words, counts_attempts=counts) for name in names)
    return RemovalReport(consumer, new_owner or None, moved)


def _has_consumer(server: RedisAdmin, stream: str, group: str, consumer: str) -> bool:
    with suppress(NoSuchStreamError):
        facts = require_group(describe_key(server, stream), group)
        return any(one.name == consumer for one in facts.consumers)
    return False


def _remove(server: RedisAdmin, stream: str, words: "tuple[Word, ...]", *, counts_attempts: bool) -> int:
    """Remove a consumer of one partition; return how many of its entries were transferred."""
    group, consumer = str(words[0]), str(words[1])
    keys = (stream, liveness_key(stream, group, consumer), registry_key(stream, group))
    moved = 0
    while True:
        state, number = server.call("EVAL", REMOVE_CONSUMER, len(keys), *keys, *words, stream=stream, group=group)
        match text(state):
            case "more":
                moved += number
            case "removed":
                return int(moved + number)
            case "missing":
                raise NoSuchStreamError(
                    f"group {printable(group)!r} of {printable(stream)!r} has no consumer {printable(consumer)!r}",
                    stream=stream,
                )
            case refused:
                why = _explain_refusal(refused, number, counts_attempts=counts_attempts)
                raise OperatorError(f"consumer {printable(consumer)!r} {why}", stream=stream)


def _explain_refusal(refused: str, number: int, *, counts_attempts: bool) -> str:
    """Return why a consumer is not removed, and how to proceed."""
    if refused == "key":
        return (
            f"is alive: its worker keeps a liveness key, which expires {number / 1000:.0f} s after the worker's death; "
            "stop the worker first, or try again then"
        )
    if refused == "alive":
        return (
            f"read {number / 1000:.1f} s ago, so it may be alive; "
            "stop it first, or give the idle time after which it counts as dead (--min-idle-s)"
        )
    if refused == "pending":
        return f"has {number} entries pending, which would be lost with it; give a new owner for them (--new-owner)"
    if counts_attempts:
        return (
            f"is not proved dead by less than {ALIVE_S:.0f} s without a read; "
            "wait that long, or make sure that it is stopped and give --force"
        )
    return (
        "is not proved dead: before Redis 7.2 the server does not count a read that returned nothing, so a live "
        "consumer of a quiet stream cannot be distinguished from a dead one; make sure that it is stopped, then give "
        "--force"
    )


def trim(server: RedisAdmin, stream: str, *, older_than_s: float | None = None, dry_run: bool = False) -> TrimReport:
    """Remove entries that every group has acknowledged. Pending and undelivered entries are never removed.

    One script determines which entries are needed and removes at most 10,000 others per call, which bounds the time
    that the server is blocked.

    Args:
        server: The Redis.
        stream: The stream.
        older_than_s: Keep entries that are younger than this.
        dry_run: Report the first needed id and remove nothing.

    Raises:
        ConfigurationError: ``older_than_s`` is not a number of seconds.
        OperatorError: The stream has no group, so it is unknown which entries are needed.
    """
    keep_s = 0.0 if older_than_s is None else require_seconds("older_than_s", older_than_s, zero_allowed=True)
    names = existing_partitions(server, stream)
    reports = [_trim(server, name, round(keep_s * 1000), dry_run=dry_run) for name in names]
    return TrimReport(
        min((report.below_id for report in reports), key=parse_id),
        None if dry_run else sum(report.removed or 0 for report in reports),
        sum(report.length for report in reports),
    )


def _trim(server: RedisAdmin, stream: str, keep_ms: int, *, dry_run: bool) -> TrimReport:
    """Trim one partition."""
    server.require_stream(stream)
    below, _, length, _ = _step(server, stream, keep_ms, "report", "")
    removed, gaps_from = 0, "0-0"
    while not dry_run:
        # First all entries before the first needed one, then acknowledged entries between pending ones.
        _, step, length, next_gap = _step(server, stream, keep_ms, "trim", gaps_from)
        removed += step
        if next_gap == "end" or not (step or next_gap):
            break
        gaps_from = next_gap or gaps_from
    return TrimReport(below, None if dry_run else removed, length)


def _step(server: RedisAdmin, stream: str, keep_ms: int, mode: str, gaps_from: str) -> tuple[str, int, int, str]:
    reply = server.call("EVAL", TRIM, 1, stream, mode, _TRIM_STEP, keep_ms, 0, gaps_from, stream=stream)
    state, below, removed, length, _, _, gaps_from = reply
    if text(state) == "no groups":
        raise OperatorError(
            f"stream {printable(stream)!r} has no consumer group, so it is not known what is still needed; "
            "nothing was removed",
            stream=stream,
        )
    return text(below), int(removed), int(length), text(gaps_from)
