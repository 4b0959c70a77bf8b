"""Checks of replication and of the nodes of a Redis Cluster: the writes that a failover can lose.

Redis confirms a write before its replicas have received it. The failure of a master loses writes that it had not
replicated.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from conquiet.core.redaction import printable
from conquiet.errors import QueueError
from conquiet.management.doctor.findings import Finding
from conquiet.management.redis_admin import RedisAdmin
from conquiet.redis_transport.replies import as_mapping, info_fields, text
from conquiet.redis_transport.routing import NodeAddress

_REPLICA = re.compile(r"slave\d+")
_LAGGING_BYTES = 10 * 1024 * 1024
_OPEN_SLOT = re.compile(r"\[(\d+)-[<>]-")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts about one master of a Redis Cluster, or about a single server (``name`` is empty)."""

    name: str
    info: Mapping[str, str]
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Facts about a Redis Cluster.

    Attributes:
        nodes: Facts about each master that replied.
        silent: Addresses of masters that did not reply.
        info: CLUSTER INFO.
        open_slots: Slots in migration.
    """

    nodes: tuple[NodeFacts, ...]
    silent: tuple[str, ...]
    info: Mapping[str, str]
    open_slots: tuple[int, ...]


def gather_cluster(server: RedisAdmin) -> ClusterFacts | None:
    """Read the facts of each master of a Redis Cluster; None for a single server."""
    if not server.is_cluster:
        return None
    nodes: list[NodeFacts] = []
    silent: list[str] = []
    open_slots: set[int] = set()
    for address in server.masters():
        if address is None:
            continue
        name = f"{address[0]}:{address[1]}"
        try:
            info = info_fields(server.call_each(address, "INFO"))
            open_slots |= set(map(int, _OPEN_SLOT.findall(text(server.call_each(address, "CLUSTER", "NODES")))))
            nodes.append(NodeFacts(name, info, read_config(server, address)))
        except QueueError:
            silent.append(name)
    state = info_fields(server.call("CLUSTER", "INFO"))
    return ClusterFacts(tuple(nodes), tuple(silent), state, tuple(sorted(open_slots)))


def check_nodes(facts: ClusterFacts) -> Iterator[Finding]:
    """Report a cluster with missing nodes or slots."""
    if facts.silent:
        yield Finding.error(
            "redis.cluster.nodes",
            f"{len(facts.silent)} masters did not answer: {', '.join(map(printable, facts.silent))}",
            "the streams of their slots are not served until they, or their replicas, are available",
            "start them, or let a replica take over (CLUSTER FAILOVER)",
        )
    if facts.info.get("cluster_state") != "ok" or facts.info.get("cluster_slots_assigned") != "16384":
        yield Finding.error(
            "redis.cluster.state",
            f"the cluster's state is {facts.info.get('cluster_state', 'unknown')}, "
            f"{facts.info.get('cluster_slots_assigned', '0')} of 16384 slots have a master",
            "streams in the other slots cannot be read or written",
            "redis-cli --cluster check, then --cluster fix",
        )
    if facts.open_slots:
        yield Finding.warning(
            "redis.cluster.migration",
            f"{len(facts.open_slots)} slots are in migration, the first is {facts.open_slots[0]}",
            "a retry or a delayed message of a stream in such a slot waits until the slot has moved",
            "nothing if a reshard is running; else redis-cli --cluster fix",
        )


def check_replication(node: NodeFacts) -> Iterator[Finding]:
    """Report the writes that a failover of this master would lose."""
    if node.info.get("role") != "master":
        return
    where = f"{node.name}: " if node.name else ""
    replicas = replicas_in(node.info)
    online = [one for one in replicas if one.get("state") == "online"]
    if not online:
        if node.name or replicas:
            yield Finding.warning(
                "redis.replicas",
                f"{where}the master has no replica that is online",
                "if it dies, no server can take over, and its streams are unavailable or lost",
                "add a replica, or repair its link",
            )
        return
    offset = int(node.info.get("master_repl_offset", "0"))
    behind = max(offset - int(one.get("offset", "0")) for one in online)
    if behind > _LAGGING_BYTES:
        yield Finding.warning(
            "redis.replicas",
            f"{where}a replica is {behind:,} bytes behind",
            "a fail-over to it loses messages that were acknowledged",
            "check for a slow link or a slow replica",
        )
    if node.config.get("min-replicas-to-write", "0") == "0":
        yield Finding.note(
            "redis.replication",
            f"{where}min-replicas-to-write is 0: writes are acknowledged before a replica has them",
            "a fail-over loses what the master had not passed on, and a master without its replicas still "
            "accepts messages, which are lost when it returns",
            "emit and enqueue with replicas=1 what must not be lost; CONFIG SET min-replicas-to-write 1",
        )


def read_config(server: RedisAdmin, address: NodeAddress | None = None) -> dict[str, str]:
    """Return the settings that are checked, of one master of a Redis Cluster or of the only server."""
    found: dict[str, str] = {}
    for name in ("appendfsync", "maxmemory", "maxmemory-policy", "min-replicas-to-write", "save"):
        try:
            reply = server.call_each(address, "CONFIG", "GET", name)
        except QueueError:  # managed servers forbid it
            return found
        found |= {text(key): text(value) for key, value in as_mapping(reply).items()}
    return found


def replicas_in(info: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the facts about each replica in a reply to INFO."""
    lines = [value for name, value in info.items() if _REPLICA.fullmatch(name)]
    return [dict(part.split("=", 1) for part in line.split(",") if "=" in part) for line in lines]
