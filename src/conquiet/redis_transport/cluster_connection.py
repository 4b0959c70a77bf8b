"""The synchronous connection to a Redis Cluster: packed commands, each sent once, to the node of their stream.

Has the interface of ``RedisConnection``. The stream that a call names for its errors also names the slot: every key of
a call lies in the slot of its stream (``hash_tags``). A call without a stream goes to any master.

See docs/decisions/0015.
"""

from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import RedisError, ResponseError

from conquiet.errors import QueueError
from conquiet.redis_transport.client import AnyRedis, clone_sync
from conquiet.redis_transport.commands import pack, split_packed
from conquiet.redis_transport.connection import RedisConnection
from conquiet.redis_transport.errors import translate
from conquiet.redis_transport.routing import REDIRECTS, Detour, NodeAddress, NodeTarget
from conquiet.redis_transport.sync_cluster_client import SyncClusterClient

_ASKING = pack("ASKING")


def open_connection(client: AnyRedis, *, socket_timeout_s: float, longest_wait_s: float = 0.0) -> RedisConnection:
    """Return our own connections to the server or the cluster of ``client``. Nothing is sent.

    Args:
        client: The caller's; it is not used.
        socket_timeout_s: Longest wait for a reply, ``longest_wait_s`` included.
        longest_wait_s: Longest intended wait of a command (BLOCK) within it.
    """
    clone = clone_sync(client, socket_timeout_s=socket_timeout_s)
    kind = ClusterConnection if isinstance(clone, SyncClusterClient) else RedisConnection
    return kind(clone, longest_wait_s=longest_wait_s)


class ClusterConnection(RedisConnection):
    """A few connections to each node. Safe to use from several threads.

    Args:
        client: A clone made by ``clone_sync`` of a cluster's client. ``close()`` closes it.
        longest_wait_s: See ``RedisConnection``.
    """

    def __init__(self, client: redis.Redis, *, longest_wait_s: float = 0.0) -> None:
        super().__init__(client, longest_wait_s=longest_wait_s)
        if not isinstance(client, SyncClusterClient):
            raise TypeError("a ClusterConnection needs a clone of a cluster's client")
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
        target = (self._owner(command, stream, group), False)
        detour = Detour(self._settings["socket_timeout"])
        while True:
            failure: QueueError | None = None
            answers: list[Any] = []
            try:
                answers = self._send(target, command, b"".join(packed), len(packed), wait_s, stream, group)
            except QueueError as error:
                failure = error
            cause: Any = answers[0] if failure is None else failure.__cause__
            if failure is None and not isinstance(cause, REDIRECTS):
                return answers
            try:
                target = self._cluster.next_target(cause, stream, target, detour)
            except (RedisError, OSError):
                if failure is None:
                    return answers
                raise failure from cause

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
            return self._cluster.owner(stream or None)
        except (RedisError, OSError) as error:
            raise translate(error, stream=stream, group=group, command=command, sent=False) from error

    def _exchange(
        self, command: str, packed: bytes, replies: int | None, wait_s: float, stream: str, group: str
    ) -> Any:
        self._require_open()
        target = (self._owner(command, stream, group), False)
        try:
            answer = self._send(target, command, packed, replies, wait_s, stream, group)
        except QueueError as error:
            failure = error
        else:
            if replies is not None and any(isinstance(one, REDIRECTS) for one in answer):
                return self._resend_refused(answer, command, packed, target, (wait_s, stream, group))
            return answer
        return self._follow(failure, target, command, packed, (wait_s, stream, group), replies)

    def _follow(
        self,
        failure: QueueError,
        target: NodeTarget,
        command: str,
        packed: bytes,
        rest: tuple[float, str, str],
        replies: int | None = None,
    ) -> Any:
        """Send commands to the node that a redirect names. Only what no node has executed is sent again."""
        detour = Detour(self._settings["socket_timeout"])
        while True:
            cause = failure.__cause__
            if not isinstance(cause, RedisError | OSError) or not rest[1]:
                raise failure
            try:
                target = self._cluster.next_target(cause, rest[1], target, detour)
            except (RedisError, OSError):
                raise failure from cause
            try:
                return self._send(target, command, packed, replies, *rest)
            except QueueError as error:
                failure = error

    def _resend_refused(
        self, answers: list[Any], command: str, packed: bytes, target: NodeTarget, rest: tuple[float, str, str]
    ) -> list[Any]:
        """Send the redirected commands of a pipeline again. The others have their replies."""
        for place, (answer, one) in enumerate(zip(answers, split_packed(packed), strict=True)):
            if isinstance(answer, REDIRECTS):
                refusal = translate(answer, stream=rest[1], group=rest[2], command=command)
                refusal.__cause__ = answer
                try:
                    answers[place] = self._follow(refusal, target, command, one, rest)
                except QueueError as error:
                    if not isinstance(error.__cause__, ResponseError):
                        raise
                    answers[place] = error.__cause__
        return answers

    def _send(
        self,
        target: NodeTarget,
        command: str,
        packed: bytes,
        replies: int | None,
        wait_s: float,
        stream: str,
        group: str,
    ) -> Any:
        address, asking = target
        node = self._node(address)
        if not asking:
            return node._exchange(command, packed, replies, wait_s, stream, group)  # noqa: SLF001 - the same class
        commands = [packed] if replies is None else split_packed(packed)
        asked = b"".join(_ASKING + one for one in commands)
        answers: list[Any] = node._exchange(command, asked, 2 * len(commands), wait_s, stream, group)[1::2]  # noqa: SLF001
        if replies is not None:
            return answers
        if isinstance(answers[0], ResponseError):
            raise translate(answers[0], stream=stream, group=group, command=command) from answers[0]
        return answers[0]

    def _node(self, address: NodeAddress) -> RedisConnection:
        node = self._nodes.get(address)
        if node is None:
            node = RedisConnection(self._cluster.node(address), longest_wait_s=self._longest_wait_s)
            self._nodes[address] = node
            if self._aborted:
                node.abort()
        return node
