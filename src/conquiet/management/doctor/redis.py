"""What bites users of Redis Streams. Facts are gathered once; each check is a small function over them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from conquiet.errors import GroupMissingError, QueueError
from conquiet.kernel.redaction import printable
from conquiet.management.doctor.findings import Finding, Severity
from conquiet.management.models import GroupFacts, StreamFacts
from conquiet.management.overview import ALIVE_MS, list_streams
from conquiet.management.server import Server
from conquiet.queue.replies import Pending, pending_rows, text

_NEEDED = (
    "XADD",
    "XREADGROUP",
    "XACK",
    "XPENDING",
    "XCLAIM",
    "XAUTOCLAIM",
    "XINFO",
    "XGROUP",
    "XRANGE",
    "EVAL",
    "EVALSHA",
)
_OLDEST = (6, 2)
_CROWDED = 0.9
_HIGH_ROWS = 1_000
_COUNT_STEP = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisLimits:
    """From where on something counts as a fault.

    Attributes:
        max_lag: Undelivered entries of one group.
        max_age_s: Age of the oldest entry of a group that is not done.
        max_done: Entries that every group is done with and nobody trims.
        max_deliveries: Deliveries after which an entry should have been given up.
        alive_ms: A consumer that has asked for nothing for so long counts as dead.
    """

    max_lag: int = 10_000
    max_age_s: float = 600.0
    max_done: int = 100_000
    max_deliveries: int = 10
    alive_ms: int = ALIVE_MS


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """What the server said.

    Attributes:
        counted: Undelivered entries of the groups whose lag the server does not know, by stream and group; at most
            one more than ``max_lag``.
        complete: False if there are more streams than were looked at.
    """

    info: dict[str, str]
    config: dict[str, str]
    missing_commands: tuple[str, ...]
    streams: tuple[StreamFacts, ...]
    exhausted: tuple[tuple[str, str, int], ...]
    client_version: str
    limits: RedisLimits = field(default_factory=RedisLimits)
    counted: dict[tuple[str, str], int] = field(default_factory=dict)
    complete: bool = True


def examine_redis(server: Server, limits: RedisLimits | None = None) -> list[Finding]:
    """Gather the facts and return what is wrong, the worst first."""
    facts = gather(server, limits or RedisLimits())
    found = [finding for check in CHECKS for finding in check(facts)]
    return sorted(found, key=lambda finding: -list(Severity).index(finding.severity))


def gather(server: Server, limits: RedisLimits) -> RedisFacts:
    """Ask the server. Bounded: at most 100 streams, 1,000 pending rows per group, ``max_lag`` entries counted."""
    found = list_streams(server, alive_ms=limits.alive_ms)
    streams = found.streams
    return RedisFacts(
        info=server.info(),
        config=_config(server),
        missing_commands=_missing(server),
        streams=streams,
        exhausted=tuple(_exhausted(server, streams, limits.max_deliveries)),
        client_version=_client_version(),
        limits=limits,
        counted=dict(_counted(server, streams, limits.max_lag)),
        complete=found.complete,
    )


def _config(server: Server) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in ("appendfsync", "maxmemory", "maxmemory-policy", "save"):
        try:
            found |= {key: text(value) for key, value in server.mapping("CONFIG", "GET", name).items()}
        except QueueError:  # managed servers forbid it
            return found
    return found


def _missing(server: Server) -> tuple[str, ...]:
    try:
        replies = server.call("COMMAND", "INFO", *_NEEDED)
    except QueueError:
        return ()
    return tuple(name for name, reply in zip(_NEEDED, replies, strict=True) if not reply)


def _exhausted(server: Server, streams: tuple[StreamFacts, ...], cap: int) -> Iterator[tuple[str, str, int]]:
    for stream in streams:
        for group in stream.groups:
            count = sum(row.deliveries >= cap for row in _pending(server, stream, group))
            if count:
                yield stream.key, group.name, count


def _pending(server: Server, stream: StreamFacts, group: GroupFacts) -> list[Pending]:
    if not group.pending:
        return []
    words = ("XPENDING", stream.raw_key, group.raw_name, "-", "+", _HIGH_ROWS)
    try:
        return pending_rows(server.call(*words, stream=stream.key, group=group.name))
    except GroupMissingError:  # destroyed since it was named
        return []


def _counted(server: Server, streams: tuple[StreamFacts, ...], max_lag: int) -> Iterator[tuple[tuple[str, str], int]]:
    for stream in streams:
        for group in stream.groups:
            if group.lag is None:
                yield (stream.key, group.name), _count(server, stream, group.last_delivered_id, max_lag + 1)


def _count(server: Server, stream: StreamFacts, after: str, enough: int) -> int:
    """Count the entries behind ``after``, and stop when it is enough."""
    count = 0
    while count < enough:
        wanted = min(_COUNT_STEP, enough - count)
        page = server.call("XRANGE", stream.raw_key, f"({after}", "+", "COUNT", wanted, stream=stream.key)
        count += len(page)
        if len(page) < wanted:
            break
        after = text(page[-1][0])
    return count


def _client_version() -> str:
    try:
        return version("redis")
    except PackageNotFoundError:
        return ""


def _number(facts: RedisFacts, name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in facts.info.get(name, "0").split(".")[:2] if part.isdigit())


def check_version(facts: RedisFacts) -> Iterator[Finding]:
    """The server is too old for what the rooms use."""
    # Valkey answers with the Redis version it is compatible with.
    if _number(facts, "redis_version") < _OLDEST:
        yield Finding(
            "redis.version",
            Severity.ERROR,
            f"the server is version {facts.info.get('redis_version', 'unknown')}",
            "XAUTOCLAIM and XPENDING by idle time came with 6.2; stale work cannot be found without them",
            "update to Redis 6.2 or newer, or to Valkey",
        )


def check_commands(facts: RedisFacts) -> Iterator[Finding]:
    """Commands are renamed or switched off."""
    if facts.missing_commands:
        yield Finding(
            "redis.commands",
            Severity.ERROR,
            f"the server does not know {', '.join(facts.missing_commands)}",
            "workers cannot read, acknowledge or recover without them",
            "remove rename-command from the configuration, or use a server that offers them",
        )


def check_role(facts: RedisFacts) -> Iterator[Finding]:
    """The URL leads to a replica."""
    if facts.info.get("role") == "slave":
        yield Finding(
            "redis.role",
            Severity.ERROR,
            "the server is a replica",
            "reading a consumer group writes, and a replica refuses writes",
            "connect to the primary, or through Sentinel with master_for()",
        )


def check_persistence(facts: RedisFacts) -> Iterator[Finding]:
    """A restart loses messages."""
    if facts.info.get("aof_enabled") != "1":
        snapshots = facts.config.get("save", "unknown")
        severity = Severity.ERROR if not snapshots else Severity.WARNING
        lost = "everything" if not snapshots else "everything since the last snapshot"
        yield Finding(
            "redis.persistence",
            severity,
            "appendonly is off" + ("" if snapshots else ", and there are no snapshots either"),
            f"a restart of the server loses {lost}: streams, pending entries, groups",
            "CONFIG SET appendonly yes, and put it into the configuration file",
        )
    elif facts.config.get("appendfsync") == "no":
        yield Finding(
            "redis.persistence",
            Severity.WARNING,
            "appendfsync is no",
            "a power cut loses what the system has not written yet, up to about 30 s",
            "CONFIG SET appendfsync everysec (at most 1 s is lost) or always",
        )


def check_eviction(facts: RedisFacts) -> Iterator[Finding]:
    """A full server throws streams away."""
    policy = facts.config.get("maxmemory-policy", facts.info.get("maxmemory_policy", "noeviction"))
    limit = int(facts.info.get("maxmemory", "0"))
    if limit and policy != "noeviction":
        everything = policy.startswith("allkeys")
        yield Finding(
            "redis.eviction",
            Severity.ERROR if everything else Severity.WARNING,
            f"maxmemory-policy is {policy}",
            "a full server deletes "
            + ("whole streams with their groups" if everything else "idempotency marks, so that duplicates get in"),
            "CONFIG SET maxmemory-policy noeviction: then writers get an error instead",
        )
    used = int(facts.info.get("used_memory", "0"))
    if limit and used > limit * _CROWDED:
        yield Finding(
            "redis.memory",
            Severity.WARNING,
            f"{used * 100 // limit} % of maxmemory is used",
            "a full server refuses new messages, or throws old ones away",
            "trim streams (conquiet trim), or raise maxmemory",
        )


def check_growth(facts: RedisFacts) -> Iterator[Finding]:
    """A stream that only grows."""
    for stream in facts.streams:
        if not stream.groups or any(group.lag is None for group in stream.groups):
            continue
        needed = max((group.lag or 0) + group.pending for group in stream.groups)
        done = stream.length - needed
        if done > facts.limits.max_done:
            yield Finding(
                "redis.growth",
                Severity.WARNING,
                f"stream {printable(stream.key)!r} keeps {done:,} entries that every group is done with",
                "acknowledging removes nothing; the stream grows until the memory is full",
                f"conquiet trim {printable(stream.key)} (from cron, or use the processor's own trimming)",
            )


def check_dead_consumers(facts: RedisFacts) -> Iterator[Finding]:
    """Work that belongs to the dead."""
    for stream in facts.streams:
        for group in stream.groups:
            dead = group.dead_with_work
            if dead:
                entries = sum(consumer.pending for consumer in dead)
                yield Finding(
                    "redis.dead_consumers",
                    Severity.WARNING,
                    f"{len(dead)} dead consumers of {printable(stream.key)!r}, group {printable(group.name)!r}, hold "
                    f"{entries:,} entries",
                    "nobody handles them until a worker looks for stale work",
                    f"start a worker that claims, or: conquiet reclaim {printable(stream.key)} {printable(group.name)} "
                    "--ghosts",
                )


def check_deliveries(facts: RedisFacts) -> Iterator[Finding]:
    """Messages that come back again and again."""
    for stream, group, count in facts.exhausted:
        yield Finding(
            "redis.deliveries",
            Severity.ERROR,
            f"{count:,} entries of {printable(stream)!r}, group {printable(group)!r}, were delivered "
            f"{facts.limits.max_deliveries} times or more",
            "they fail each time, or kill their worker, and take the place of others",
            f"look at them: conquiet pending {printable(stream)} {printable(group)} "
            f"--min-deliveries {facts.limits.max_deliveries}; then mend the handler, or let a cap give them up",
        )


def check_lag(facts: RedisFacts) -> Iterator[Finding]:
    """A group that does not keep up."""
    for stream in facts.streams:
        for group in stream.groups:
            # The server loses count after an XDEL, and never counts before 7.0: somebody is waiting all the same.
            waiting = group.lag if group.lag is not None else facts.counted.get((stream.key, group.name))
            to_do = _to_do(group, waiting, facts.limits.max_lag)
            place = f"group {printable(group.name)!r} of {printable(stream.key)!r}"
            age_s = group.oldest_age_s or 0
            if to_do and not any(consumer.alive for consumer in group.consumers):
                yield Finding(
                    "redis.lag",
                    Severity.ERROR if age_s > facts.limits.max_age_s else Severity.WARNING,
                    f"{place} has {to_do} entries to do and no live consumer",
                    "nobody is working on them",
                    "start workers, or destroy the group if it is not used any more",
                )
            elif (waiting or 0) > facts.limits.max_lag or age_s > facts.limits.max_age_s:
                yield Finding(
                    "redis.lag",
                    Severity.WARNING,
                    f"{place} is behind: {to_do} entries, the oldest {age_s:,.0f} s old",
                    "messages wait longer than they should",
                    "start more workers, or look for a slow handler",
                )


def _to_do(group: GroupFacts, waiting: int | None, max_lag: int) -> str:
    """Return how many entries are not done, in words; nothing if there are none."""
    if waiting is None:
        return "an unknown number of"
    behind = waiting + group.pending
    if not behind:
        return ""
    cut_short = group.lag is None and waiting > max_lag
    return f"at least {behind:,}" if cut_short else f"{behind:,}"


def check_complete(facts: RedisFacts) -> Iterator[Finding]:
    """Streams that nobody looked at."""
    if not facts.complete:
        yield Finding(
            "redis.incomplete",
            Severity.WARNING,
            f"only {len(facts.streams):,} streams were looked at; there are more keys than the doctor goes through",
            "what is wrong with the others is not said here",
            "look at the others with conquiet inspect --pattern",
        )


def check_client(facts: RedisFacts) -> Iterator[Finding]:
    """What redis-py does by itself on the connections that are yours."""
    major = int(facts.client_version.split(".")[0] or 0) if facts.client_version else 0
    if major and not 6 <= major < 9:  # noqa: PLR2004 - as pyproject has it
        yield Finding(
            "redis.client",
            Severity.ERROR,
            f"redis-py is version {facts.client_version}",
            "conquiet is tested with 6.2 to 8",
            "pip install 'conquiet[redis]'",
        )
    elif major:
        retries, timeout = ("10", "5 s") if major >= 8 else ("3", "none")  # noqa: PLR2004
        yield Finding(
            "redis.client",
            Severity.NOTE,
            f"redis-py {facts.client_version} repeats a command up to {retries} times; socket timeout: {timeout}",
            "an XADD of your own whose reply is lost may be stored twice; conquiet's connections do not repeat",
            "enqueue through RedisStreamsQueue, or build your client with Retry(NoBackoff(), 0)",
        )


CHECKS: tuple[Callable[[RedisFacts], Iterator[Finding]], ...] = (
    check_version,
    check_commands,
    check_role,
    check_persistence,
    check_eviction,
    check_growth,
    check_dead_consumers,
    check_deliveries,
    check_lag,
    check_complete,
    check_client,
)
