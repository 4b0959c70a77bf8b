"""The synchronous connection to a Redis Cluster: packed commands, each sent once, to the node of their stream.

Has the interface of ``RedisConnection``. The stream that a call names for its errors also names the slot: every key of
a call lies in the slot of its stream (``hash_tags``). A call without a stream goes to any master.

See docs/decisions/0015.
"""

from collections.abc import Sequence
from typing import Any

from redis.exceptions import RedisError, ResponseError

from conquiet.core.threads import run_without_loop
from conquiet.errors import QueueError
from conquiet.redis_transport.client import AnyRedis, clone_sync
from conquiet.redis_transport.cluster_client import SyncClusterClient
from conquiet.redis_transport.cluster_router import ClusterRouter, sync_router
from conquiet.redis_transport.commands import pack, split_packed
from conquiet.redis_transport.connection import RedisConnection
from conquiet.redis_transport.errors import translate
from conquiet.redis_transport.routing import ConnectionFailure, NodeAddress

_ASKING = pack("ASKING")


def open_connection(client: AnyRedis, *, socket_timeout_s: float, longest_wait_s: float = 0.0) -> RedisConnection:
    """Return our own connections to the server or the cluster of ``client``. Nothing is sent.

    Args:
        client: The caller's; it is not used.
        socket_timeout_s: Longest wait for a reply, ``longest_wait_s`` included.
        longest_wait_s: Longest intended wait of a command (BLOCK) within it.
    """
    clone = clone_sync(client, socket_timeout_s=socket_timeout_s)
    if isinstance(clone, SyncClusterClient):
        return ClusterConnection(clone, longest_wait_s=longest_wait_s)
    return RedisConnection(clone, longest_wait_s=longest_wait_s)


class ClusterConnection(RedisConnection):
    """A few connections to each node. Safe to use from several threads.

    Args:
        client: A clone made by ``clone_sync`` of a cluster's client. ``close()`` closes it.
        longest_wait_s: See ``RedisConnection``.
    """

    def __init__(self, client: SyncClusterClient, *, longest_wait_s: float = 0.0) -> None:
        super().__init__(client, longest_wait_s=longest_wait_s)
        self._cluster = client
        self._nodes: dict[NodeAddress, RedisConnection] = {}

    def close(self) -> None:
        """See ``RedisConnection``."""
        for node in list(self._nodes.values()):
            node.close()
        super().close()

    def abort(self) -> None:
        """See ``RedisConnection``."""
        super().abort()
        for node in list(self._nodes.values()):
            node.abort()

    def call_together(
        self, command: str, packed: Sequence[bytes], *, stream: str = "", group: str = "", wait_s: float = 0.0
    ) -> list[Any]:
        """See ``RedisConnection``. If the first is redirected, all of them are sent to the other node."""
        self._require_open()
        self._owner(command, stream, group)
        try:
            return run_without_loop(self._router(command, wait_s, stream, group).send_together(stream or None, packed))
        except (RedisError, OSError) as error:
            raise translate(error, stream=stream, group=group, command=command) from error

    def masters(self) -> list[NodeAddress]:
        """Return the nodes that own slots, in the order of their slots.

        Raises:
            QueueError: No node of the cluster can be reached.
        """
        self._owner("CLUSTER SLOTS", "", "")
        return self._cluster.table.masters

    def call_node(self, address: NodeAddress, command: str, packed: bytes) -> Any:
        """Send one command to this node without routing; for SCAN, INFO, CONFIG."""
        return self._node(address).call(command, packed)

    def _owner(self, command: str, stream: str, group: str) -> NodeAddress:
        try:
            return run_without_loop(self._cluster.router.owner(stream or None))
        except (RedisError, OSError) as error:
            raise translate(error, stream=stream, group=group, command=command, sent=False) from error

    def _exchange(
        self, command: str, packed: bytes, replies: int | None, wait_s: float, stream: str, group: str
    ) -> Any:
        self._require_open()
        address = self._owner(command, stream, group)
        expected = 1 if replies is None else replies
        answers = self._send_packed(address, packed, expected, command, wait_s, stream, group)
        if any(isinstance(answer, ConnectionFailure) for answer in answers):
            sent = [(stream or None, one) for one in split_packed(packed)]
            answers = run_without_loop(self._router(command, wait_s, stream, group).follow_all(address, sent, answers))
        for answer in answers:
            if isinstance(answer, ConnectionFailure) and (replies is None or not isinstance(answer, ResponseError)):
                raise translate(answer, stream=stream, group=group, command=command) from answer
        return answers[0] if replies is None else answers

    def _router(self, command: str, wait_s: float, stream: str, group: str) -> ClusterRouter[bytes]:
        """Return a router for packed commands of one call."""

        def send(address: NodeAddress, packed: Sequence[bytes]) -> list[Any]:
            return self._send_packed(address, b"".join(packed), len(packed), command, wait_s, stream, group)

        return sync_router(self._cluster.table, self._settings["socket_timeout"], asking=_ASKING, send=send)

    def _send_packed(
        self, address: NodeAddress, packed: bytes, replies: int, command: str, wait_s: float, stream: str, group: str
    ) -> list[Any]:
        """Send commands to one node and return their replies; a failure is in the place of each reply."""
        try:
            answers: list[Any] = self._node(address)._exchange(command, packed, replies, wait_s, stream, group)  # noqa: SLF001 - the same class
        except QueueError as error:
            return [error.__cause__] * replies
        return answers

    def _node(self, address: NodeAddress) -> RedisConnection:
        node = self._nodes.get(address)
        if node is None:
            node = RedisConnection(self._cluster.node(address), longest_wait_s=self._longest_wait_s)
            self._nodes[address] = node
            if self._aborts_begun:
                node.abort()
        return node
