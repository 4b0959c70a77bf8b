"""A private Redis (or Valkey) Cluster: masters with a replica each, and the events of a cluster in operation.

    move_slot        an operator moves a slot to another master, key by key, while clients work
    kill_master      a master is killed, and its replica takes over
    switch_master    a replica and its master change places (a planned fail-over, which loses nothing)
    pause_node       a node stops replying and keeps its connections (SIGSTOP), then continues

All nodes are processes on the loopback that die with their owner, as every ``PrivateServer``.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING

from conquiet.testing.cluster import PrivateCluster, concurrently
from conquiet.testing.cluster_slots import SLOTS, key_slot, masters_of, slot_ranges
from conquiet.testing.errors import ServerStateError
from conquiet.testing.handshakes import NotReadyError
from conquiet.testing.polling import wait_until
from conquiet.testing.ports import free_port
from conquiet.testing.redis import RedisServer

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

_WAIT_S = 60.0
_FAILOVER_S = 5.5
_MIGRATE_TIMEOUT_MS = "5000"
_OPEN_SLOT = re.compile(r"\[(\d+)-[<>]-")


class ClusterNode(RedisServer):
    """One node. It chooses the port for the other nodes together with its own: both are new after a lost race.

    Args:
        binary: See ``RedisServer``.
        aof: See ``RedisServer``.
        password: See ``RedisServer``.
        tls: See ``RedisServer``.
        extra_args: Replaced by the arguments of a cluster node.
    """

    node_timeout_s = 5.0

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self._extra_args = (
            *("--cluster-enabled", "yes", "--cluster-port", str(free_port())),
            *(
                "--cluster-node-timeout",
                str(round(self.node_timeout_s * 1_000)),
                "--cluster-replica-validity-factor",
                "0",
            ),
            *("--cluster-require-full-coverage", "no", "--cluster-allow-replica-migration", "no"),
            *("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"),
        )

    @property
    def bus_port(self) -> str:
        """The port for the other nodes."""
        return self._extra_args[3]

    @property
    def node_id(self) -> str:
        """The node's name inside the cluster."""
        return _text(self.call("CLUSTER", "MYID"))

    def replication(self) -> dict[str, str]:
        """Return INFO replication as a dict."""
        lines = _text(self.call("INFO", "replication")).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    @property
    def is_master(self) -> bool:
        """True while the node reports that it is a master."""
        return self.replication()["role"] == "master"


class RedisClusterServer(PrivateCluster[ClusterNode]):
    """A cluster of ``masters`` nodes with ``replicas`` replicas each, started in about three seconds.

    A cluster does not serve for two seconds after its start: that wait is in the server's code.

    Args:
        masters: Number of masters; each gets an equal share of the 16,384 slots. Redis needs three for an automatic
            fail-over.
        replicas: Replicas of each master.
        binary: Program to run; see ``RedisServer``.
        node_timeout_s: A node without a reply for this time counts as dead. The default is long, so that a
            busy machine causes no fail-over; ``kill_master`` does not wait for it. Set it for tests of the cluster's
            own decision.
    """

    def __init__(
        self,
        *,
        masters: int = 3,
        replicas: int = 1,
        binary: str | os.PathLike[str] | None = None,
        node_timeout_s: float = 5.0,
    ) -> None:
        super().__init__()
        self._binary = binary
        self._masters, self._replicas = masters, replicas
        self._node_timeout_s = node_timeout_s

    # ------------------------------------------------------------------ what it is
    @property
    def url(self) -> str:
        """URL of a node that runs, with the option that makes conquiet use the whole cluster."""
        return f"{self._any_node().url}?cluster=true"

    @property
    def node_url(self) -> str:
        """URL of a node that runs, for ``redis.RedisCluster.from_url``."""
        return self._any_node().url

    def masters(self) -> list[ClusterNode]:
        """Return the nodes that own slots now, in the order of their slots, dead ones included."""
        by_address = {(node.host, node.port): node for node in self.nodes}
        return [by_address[address] for address in masters_of(self._any_node().call("CLUSTER", "SLOTS"))]

    def master_of(self, key: str) -> ClusterNode:
        """Return the node that owns the slot of this key now."""
        port = _owner(self._any_node(), key_slot(key))
        for node in self.nodes:
            if node.port == port:
                return node
        raise ServerStateError(f"no node of the cluster owns slot {key_slot(key)}")

    def replica_of(self, master: ClusterNode) -> ClusterNode:
        """Return a running replica of this node."""
        for node in self.nodes:
            if node.is_running and node is not master:
                facts = node.replication()
                if facts["role"] == "slave" and facts["master_port"] == str(master.port):
                    return node
        raise ServerStateError(f"node {master.port} has no running replica")

    def flush(self) -> None:
        """Remove all keys."""
        for node in self.nodes:
            if node.is_running and node.is_master:
                node.flush()

    # ------------------------------------------------------------------ what happens to it
    def moving_slot(self, key: str, to: ClusterNode | None = None, *, first: Sequence[str] = ()) -> Iterator[str]:
        """Move the slot of ``key`` step by step, as an operator's tool does: a generator that yields after each step.

        It yields ``"opened"``, then each key that was moved (those in ``first`` before the others), then ``"closed"``.
        Between ``opened`` and ``closed`` keys that were not moved are served by the old master, moved and missing ones
        by the new one (ASK).
        """
        slot = str(key_slot(key))
        source = self.master_of(key)
        target = to or next(node for node in self.masters() if node is not source)
        source_id, target_id = source.node_id, target.node_id
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        yield "opened"
        chosen = [name.encode() for name in first]
        while keys := chosen or source.call("CLUSTER", "GETKEYSINSLOT", slot, "10"):
            chosen = []
            for found in keys:
                name = _text(found)
                # REPLACE: a promoted replica may still have a key of a slot that its dead master had moved away.
                source.call("MIGRATE", target.host, str(target.port), name, "0", _MIGRATE_TIMEOUT_MS, "REPLACE")
                yield name
        for node in (target, source, *self.masters()):
            if node.is_running and node.is_master:
                node.call("CLUSTER", "SETSLOT", slot, "NODE", target_id)
        yield "closed"

    def move_slot(self, key: str, to: ClusterNode | None = None) -> ClusterNode:
        """Move the slot of ``key``, with its keys, to another master, and return that master."""
        source = self.master_of(key)
        target = to or next(node for node in self.masters() if node is not source)
        for _ in self.moving_slot(key, target):
            pass
        wait_until(lambda: self.master_of(key) is target, timeout_s=_WAIT_S)
        return target

    def kill_master(self, key: str, *, wait: bool = True) -> ClusterNode:
        """Kill the master of ``key`` (SIGKILL) and let its replica take over; return the dead node.

        The replica takes over immediately, without a vote of the others: a real fail-over, without the wait for
        ``node_timeout_s``. Writes that were not replicated are lost, as in every fail-over of Redis.
        """
        master = self.master_of(key)
        replica = self.replica_of(master)
        master.kill()
        replica.call("CLUSTER", "FAILOVER", "TAKEOVER")
        if wait:
            self._wait_for_owner(key, replica)
        return master

    def switch_master(self, key: str) -> ClusterNode:
        """Let the replica of the master of ``key`` change places with it, and return the new master."""
        master = self.master_of(key)
        replica = self.replica_of(master)
        wait_until(lambda: replica.replication()["master_link_status"] == "up", timeout_s=_WAIT_S)
        deadline = time.monotonic() + _WAIT_S
        while True:
            # Masters do not vote twice for the same shard within two node timeouts, and the server gives up after 5 s.
            replica.call("CLUSTER", "FAILOVER")
            try:
                self._wait_for_owner(key, replica, timeout_s=_FAILOVER_S)
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise
            else:
                return replica

    def revive(self, node: ClusterNode) -> None:
        """Start a dead node again; it becomes a replica of the node that took over, and this waits until it is."""
        node.restart()
        wait_until(lambda: node.replication().get("master_link_status") == "up", timeout_s=_WAIT_S)

    @contextlib.contextmanager
    def pause_node(self, node: ClusterNode) -> Iterator[None]:
        """Stop a node (SIGSTOP) for the length of the block: connections stay open, nothing replies."""
        node.pause()
        try:
            yield
        finally:
            node.resume()

    def ensure_healthy(self) -> None:
        """Bring dead and paused nodes back, so that every master has its replicas again. For a shared cluster."""
        for node in self.nodes:
            if not node.is_running:
                node.ensure_running()
        for node in self.nodes:
            for slot in _OPEN_SLOT.findall(_text(node.call("CLUSTER", "NODES"))):
                node.call("CLUSTER", "SETSLOT", slot, "STABLE")  # a migration that a test has left behind
        self._wait_settled()

    # ------------------------------------------------------------------ inside
    def _form(self) -> None:
        self.nodes = [ClusterNode(binary=self._binary) for _ in range(self._masters * (1 + self._replicas))]
        for node in self.nodes:
            node.node_timeout_s = self._node_timeout_s
        concurrently(ClusterNode.start, self.nodes)
        masters = self.nodes[: self._masters]
        for number, node in enumerate(self.nodes):
            # Without it all nodes start in the same epoch and need seconds to agree on another.
            node.call("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        for number, node in enumerate(masters):
            first, last = SLOTS * number // self._masters, SLOTS * (number + 1) // self._masters - 1
            node.call("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
        for number, node in enumerate(self.nodes):
            for other in self.nodes[:number]:  # every node meets every other: gossip alone takes a second
                node.call("CLUSTER", "MEET", other.host, str(other.port), other.bus_port)
        wait_until(lambda: all(self._knows_all(node) for node in self.nodes), timeout_s=_WAIT_S)
        for number, node in enumerate(self.nodes[self._masters :]):
            self._replicate(node, masters[number % self._masters].node_id)
        self._wait_settled()

    def _knows_all(self, node: ClusterNode) -> bool:
        rows = _text(node.call("CLUSTER", "NODES")).splitlines()
        return len(rows) == len(self.nodes) and not any("handshake" in row or "noaddr" in row for row in rows)

    def _replicate(self, node: ClusterNode, master_id: str) -> None:
        def asked() -> bool:
            try:
                node.call("CLUSTER", "REPLICATE", master_id)
            except NotReadyError:
                return False  # it does not know the other as a master yet
            return True

        wait_until(asked, timeout_s=_WAIT_S)

    def _wait_settled(self) -> None:
        """Wait until all nodes agree on the masters, and each replica is in step with its own."""
        wait_until(self._is_settled, timeout_s=_WAIT_S, message="the nodes of the cluster did not agree")

    def _is_settled(self) -> bool:
        views = [slot_ranges(node.call("CLUSTER", "SLOTS"), with_replicas=True) for node in self.nodes]
        if any(view != views[0] for view in views) or len(views[0]) < self._masters:
            return False
        in_step = all(node.is_master or node.replication()["master_link_status"] == "up" for node in self.nodes)
        return in_step and all("cluster_state:ok" in _text(node.call("CLUSTER", "INFO")) for node in self.nodes)

    def _wait_for_owner(self, key: str, owner: ClusterNode, *, timeout_s: float = _WAIT_S) -> None:
        slot = key_slot(key)

        def known() -> bool:
            running = [node for node in self.nodes if node.is_running]
            return all(_owner(node, slot) == owner.port for node in running) and owner.is_master

        wait_until(known, timeout_s=timeout_s)


def _owner(node: ClusterNode, slot: int) -> int | None:
    """Return the port of the node that owns a slot, as this node knows it."""
    owners = slot_ranges(node.call("CLUSTER", "SLOTS"))
    return next((port for slots, (_, port) in owners.items() if slot in slots), None)


def _text(reply: bytes) -> str:
    return reply.decode()
