"""A private RabbitMQ cluster on the loopback: nodes to kill and to isolate, and quorum queues with leaders that move.

    kill_leader    the leader of a quorum queue is killed, and another node leads
    drain          maintenance: a node transfers its leaders and closes its connections, then serves again
    isolate        a partition: a node and the others do not reach each other, then they do again

The nodes share one cookie and one epmd, which runs as a separate process: an epmd that a node has started would end
with that node.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote
from uuid import uuid4

from conquiet.rabbitmq_api import with_vhost
from conquiet.testing.cluster import PrivateCluster, concurrently
from conquiet.testing.errors import ServerStartError, ServerStateError
from conquiet.testing.handshakes import connect_tcp
from conquiet.testing.polling import wait_until
from conquiet.testing.process import PrivateServer, ServerCommand
from conquiet.testing.rabbitmq import RabbitMQServer

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

_WAIT_S = 120.0
# A dead letter that was in flight when a node was killed (strategy "at-least-once") is sent again after this time.
# RabbitMQ waits three minutes, and rabbitmq.conf has no name for it.
_ADVANCED_CONFIG = "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 10000}]}].\n"


class _Epmd(PrivateServer):
    """The name server of the nodes."""

    product: ClassVar[str] = "epmd"

    @property
    def url(self) -> str:
        return f"epmd://{self.host}:{self.port}"

    def _command(self) -> ServerCommand:
        program = shutil.which("epmd")
        if program is None:
            raise ServerStartError("epmd was not found; it comes with Erlang", log="")
        return ServerCommand((program, "-port", str(self.port), "-address", self.host), {})

    def _probe(self) -> str:
        connect_tcp(self.host, self.port).close()
        return ""


class RabbitMQNode(RabbitMQServer):
    """One node of a cluster.

    Args:
        cookie: The secret that the nodes share.
        epmd_port: Port of their name server.
        join: Name of a node to join; None for the first.
        binary: See ``RabbitMQServer``.
    """

    start_timeout_s: ClassVar[float] = 180.0

    def __init__(
        self, *, cookie: str, epmd_port: int, join: str | None = None, binary: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(binary=binary)
        self._cookie, self._shared_epmd_port, self._join = cookie, epmd_port, join
        # An isolated node stops serving until it reaches the others again, and then rejoins.
        self._extra_config = ("cluster_partition_handling = pause_minority",)
        if join is not None:
            self._extra_config += (
                "cluster_formation.peer_discovery_backend = classic_config",
                f"cluster_formation.classic_config.nodes.1 = {join}",
            )

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self._epmd_port = self._shared_epmd_port

    def _prepare(self) -> None:
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(self._cookie)
        cookie.chmod(0o400)
        (self.folder / "advanced.config").write_text(_ADVANCED_CONFIG)


class RabbitMQClusterServer(PrivateCluster[RabbitMQNode]):
    """A cluster of ``nodes`` nodes, started in about half a minute.

    Args:
        nodes: Number of nodes; quorum queues need three to survive the loss of one.
        binary: See ``RabbitMQServer``.
    """

    def __init__(self, *, nodes: int = 3, binary: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        self._count, self._binary = nodes, binary
        self._epmd = _Epmd()

    def _form(self) -> None:
        self._epmd.start()
        cookie = uuid4().hex
        first = RabbitMQNode(cookie=cookie, epmd_port=self._epmd.port, binary=self._binary)
        self.nodes.append(first)
        first.start()
        others = [
            RabbitMQNode(cookie=cookie, epmd_port=self._epmd.port, join=first.node, binary=self._binary)
            for _ in range(self._count - 1)
        ]
        self.nodes += others
        concurrently(RabbitMQNode.start, others)
        wait_until(self._is_whole, timeout_s=_WAIT_S)

    def stop(self) -> None:
        """End all nodes. May be called at any time and more than once."""
        super().stop()
        self._epmd.stop()

    @property
    def urls(self) -> list[str]:
        """AMQP URLs of all nodes, for clients that take several."""
        return [node.url for node in self.nodes]

    def create_vhost(self, name: str) -> list[str]:
        """Create a vhost and return its AMQP URL on each node."""
        self._any_node().create_vhost(name)
        return [with_vhost(node.url, name) for node in self.nodes]

    def leader_of(self, queue: str, vhost: str = "/") -> RabbitMQNode:
        """Return the node that has the leader of a quorum queue now.

        Raises:
            ServerStateError: It has none at the moment.
        """
        facts = self._any_node().api("GET", f"/api/queues/{quote(vhost, safe='')}/{quote(queue, safe='')}")
        leader = facts.get("leader") or facts.get("node")
        for node in self.nodes:
            if node.node == leader:
                return node
        raise ServerStateError(f"queue {queue} has no leader now")

    def kill_leader(self, queue: str, vhost: str = "/") -> RabbitMQNode:
        """Kill the node that leads a quorum queue, wait until another node leads it, and return the killed node."""
        dead = self.leader_of(queue, vhost)
        dead.kill()
        wait_until(lambda: self._leads_elsewhere(queue, vhost, dead), timeout_s=_WAIT_S)
        return dead

    @contextlib.contextmanager
    def drain(self, node: RabbitMQNode) -> Iterator[None]:
        """Put a node into maintenance for the length of the block: other nodes lead its queues, its clients leave."""
        node.ctl("eval", "rabbit_maintenance:drain().")
        try:
            yield
        finally:
            node.ctl("eval", "rabbit_maintenance:revive().")
            wait_until(self._is_whole, timeout_s=_WAIT_S)

    @contextlib.contextmanager
    def isolate(self, node: RabbitMQNode) -> Iterator[None]:
        """Isolate a node from the others while the block runs, and wait until it has rejoined.

        Both sides close their connections and refuse new ones, because the cookies differ; clients reach all nodes.
        """
        others = ",".join(f"'{one.node}'" for one in self.nodes if one is not node)
        isolation = f"[begin erlang:set_cookie(N, cut_off), erlang:disconnect_node(N) end || N <- [{others}]]."
        node.ctl("eval", isolation)
        try:
            yield
        finally:
            node.ctl("eval", f"[erlang:set_cookie(N, erlang:get_cookie()) || N <- [{others}]].")
            wait_until(self._is_whole, timeout_s=_WAIT_S)

    def revive(self, node: RabbitMQNode) -> None:
        """Start a dead node again and wait until it is back in the cluster."""
        node.restart()
        wait_until(self._is_whole, timeout_s=_WAIT_S)

    def _leads_elsewhere(self, queue: str, vhost: str, dead: RabbitMQNode) -> bool:
        try:
            return self.leader_of(queue, vhost) is not dead
        except (OSError, ServerStateError):
            return False

    def _is_whole(self) -> bool:
        try:
            views = [node.api("GET", "/api/nodes") for node in self.nodes]
        except OSError:
            return False
        return all(sum(bool(one.get("running")) for one in view) == self._count for view in views)
