"""Checks of Redis. Facts are gathered once; each check is a function of them."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from conquiet.core.versions import release_of
from conquiet.management.doctor.clocks import check_clocks
from conquiet.management.doctor.findings import Finding, Severity, run_checks
from conquiet.management.doctor.redis_facts import RedisFacts, RedisLimits, gather
from conquiet.management.doctor.redis_streams import (
    check_dead_consumers,
    check_deliveries,
    check_growth,
    check_lag,
)
from conquiet.management.doctor.replication import NodeFacts, check_nodes, check_replication
from conquiet.management.doctor.retention import check_unread_groups
from conquiet.management.doctor.stranded import check_stranded
from conquiet.management.redis_admin import RedisAdmin

__all__ = ["CHECKS", "RedisFacts", "RedisLimits", "examine_redis", "gather"]

_OLDEST = (6, 2)
_CROWDED = 0.9


def examine_redis(server: RedisAdmin, limits: RedisLimits | None = None) -> list[Finding]:
    """Gather the facts and return the findings, the most severe first."""
    facts = gather(server, limits or RedisLimits())
    return run_checks(CHECKS, facts)


def check_version(facts: RedisFacts) -> Iterator[Finding]:
    """Report a server older than 6.2."""
    # Valkey reports the Redis version that it is compatible with.
    if release_of(facts.info.get("redis_version", "0")) < _OLDEST:
        yield Finding.error(
            "redis.version",
            f"the server is version {facts.info.get('redis_version', 'unknown')}",
            "XAUTOCLAIM and XPENDING by idle time came with 6.2; stale work cannot be found without them",
            "update to Redis 6.2 or newer, or to Valkey",
        )


def check_commands(facts: RedisFacts) -> Iterator[Finding]:
    """Report commands that are renamed or disabled."""
    if facts.missing_commands:
        yield Finding.error(
            "redis.commands",
            f"the server does not know {', '.join(facts.missing_commands)}",
            "workers cannot read, acknowledge or recover without them",
            "remove rename-command from the configuration, or use a server that offers them",
        )


def check_role(facts: RedisFacts) -> Iterator[Finding]:
    """Report a URL of a replica."""
    if facts.info.get("role") == "slave":
        yield Finding.error(
            "redis.role",
            "the server is a replica",
            "reading a consumer group writes, and a replica refuses writes",
            "connect to the primary, or through Sentinel with master_for()",
        )


def check_persistence(facts: RedisFacts) -> Iterator[Finding]:
    """Report persistence settings that lose messages at a restart."""
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
        yield Finding.warning(
            "redis.persistence",
            "appendfsync is no",
            "a power cut loses what the system has not written yet, up to about 30 s",
            "CONFIG SET appendfsync everysec (at most 1 s is lost) or always",
        )


def check_eviction(facts: RedisFacts) -> Iterator[Finding]:
    """Report a maxmemory-policy that can evict streams."""
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
        yield Finding.warning(
            "redis.memory",
            f"{used * 100 // limit} % of maxmemory is used",
            "a full server refuses new messages, or throws old ones away",
            "trim streams (conquiet trim), or raise maxmemory",
        )


def _check_clocks(facts: RedisFacts) -> Iterator[Finding]:
    return check_clocks(facts.clocks, facts.limits.max_clock_offset_s)


def check_replicas(facts: RedisFacts) -> Iterator[Finding]:
    """Report the writes that a failover of each master would lose."""
    if facts.cluster is None:
        yield from check_replication(NodeFacts("", facts.info, facts.config))
        return
    yield from check_nodes(facts.cluster)
    for node in facts.cluster.nodes:
        yield from check_replication(node)
        # Masters are configured separately. The checks above cover the first one.
        if node.info.get("run_id") != facts.info.get("run_id"):
            alone = replace(facts, info=dict(node.info), config=dict(node.config), cluster=None)
            for check in (check_version, check_persistence, check_eviction):
                for finding in check(alone):
                    yield replace(finding, what=f"{node.name}: {finding.what}")


def check_complete(facts: RedisFacts) -> Iterator[Finding]:
    """Report that some streams were not checked."""
    if not facts.complete:
        yield Finding.warning(
            "redis.incomplete",
            f"only {len(facts.streams):,} streams were checked; there are more keys than the doctor scans",
            "problems of the others are not reported",
            "check the others with conquiet inspect --pattern",
        )


def check_client(facts: RedisFacts) -> Iterator[Finding]:
    """Report an untested redis-py, and that redis-py retries commands on connections of the application."""
    major = int(facts.client_version.split(".")[0] or 0) if facts.client_version else 0
    if major and not 6 <= major < 9:  # noqa: PLR2004 - as pyproject has it
        yield Finding.error(
            "redis.client",
            f"redis-py is version {facts.client_version}",
            "conquiet is tested with 6.2 to 8",
            "pip install 'conquiet[redis]'",
        )
    elif major:
        retries, timeout = ("10", "5 s") if major >= 8 else ("3", "none")  # noqa: PLR2004
        yield Finding.note(
            "redis.client",
            f"redis-py {facts.client_version} repeats a command up to {retries} times; socket timeout: {timeout}",
            "an XADD of your program may be stored twice if its reply is lost; conquiet's connections do not repeat",
            "enqueue through RedisStreamsQueue, or build your client with Retry(NoBackoff(), 0)",
        )


CHECKS: tuple[Callable[[RedisFacts], Iterator[Finding]], ...] = (
    check_version,
    check_commands,
    check_role,
    check_persistence,
    check_eviction,
    check_growth,
    check_unread_groups,
    check_dead_consumers,
    check_stranded,
    check_deliveries,
    check_lag,
    _check_clocks,
    check_replicas,
    check_complete,
    check_client,
)
