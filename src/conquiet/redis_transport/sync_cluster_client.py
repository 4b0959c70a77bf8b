"""A synchronous client of a Redis Cluster with the interface of a client of one server. Each command is sent once.

See ``cluster_client``, which does the same with asyncio, and docs/decisions/0015.
"""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import redis
from redis.client import Pipeline
from redis.exceptions import RedisError, ResponseError

from conquiet.redis_transport.client import ClusterRouted, ClusterSeeds, clone_sync, clone_to
from conquiet.redis_transport.connect_errors import no_connection
from conquiet.redis_transport.routing import (
    ASKING,
    ConnectionFailure,
    Detour,
    NodeAddress,
    NodeCommand,
    NodeTarget,
    key_of,
    raise_first_error,
)
from conquiet.redis_transport.slot_table import SlotTable


class SyncClusterClient(ClusterRouted, redis.Redis):
    """Sends each command to the node of its key. For several threads.

    Args:
        seeds: How to reach the nodes.
        socket_timeout_s: Longest wait for a reply, and longest total time of its redirects.
        table: The owners of the slots; its own by default.
    """

    def __init__(self, seeds: ClusterSeeds, *, socket_timeout_s: float, table: SlotTable | None = None) -> None:
        template = clone_sync(seeds.template, socket_timeout_s=socket_timeout_s)
        super().__init__(connection_pool=template.connection_pool)
        self.seeds = seeds
        self.table = SlotTable(seeds) if table is None else table
        self._owns_table = table is None
        self._timeout_s = socket_timeout_s
        self._nodes: dict[NodeAddress, redis.Redis] = {}

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send one command and return its reply. Raises redis-py's errors."""
        key = key_of(args)
        target = (self.owner(key), False)
        try:
            return self._send(target, args, options)
        except (RedisError, OSError) as error:
            failure: ConnectionFailure = error
        return self._follow((args, options), key, target, failure)

    def pipeline(self, transaction: bool = False, shard_hint: str | None = None) -> Any:  # noqa: FBT001, FBT002, ARG002 - redis-py's signature
        """Return a pipeline over all nodes. There is no transaction: one cannot follow a slot that moves."""
        if transaction:
            raise NotImplementedError("a transaction on a Redis Cluster: use a script")
        return SyncClusterPipeline(self)

    def node_of(self, key: str) -> redis.Redis:
        """Return the client of the last known owner of a key, or this one if none is known."""
        try:
            return self.node(self.table.owner(key))
        except RedisError:
            return self

    def execute_many(self, commands: Sequence[NodeCommand]) -> list[Any]:
        """Send commands, one pipeline per node, and return their replies; errors are among them."""
        keys = [key_of(args) for args, _ in commands]
        by_node: dict[NodeAddress, list[int]] = {}
        for place, key in enumerate(keys):
            by_node.setdefault(self.owner(key), []).append(place)
        replies: list[Any] = [None] * len(commands)
        for address, places in by_node.items():
            answers = self._send_many(address, [commands[place] for place in places])
            for place, answer in zip(places, answers, strict=True):
                replies[place] = answer
                if isinstance(answer, RedisError | OSError):
                    try:
                        replies[place] = self._follow(commands[place], keys[place], (address, False), answer)
                    except (RedisError, OSError) as error:
                        replies[place] = error
        return replies

    def send_together(self, commands: Sequence[NodeCommand]) -> list[Any]:
        """Send commands to one node, on one connection, and return their replies.

        If the first is redirected, all of them are sent to the other node: the first has done nothing, and the others
        must follow it. Refusals of the others are among the replies.
        """
        key = key_of(commands[0][0])
        target = (self.owner(key), False)
        detour = Detour(self._timeout_s)
        while True:
            address, asking = target
            sent = [one for command in commands for one in (ASKING, command)] if asking else commands
            replies = self._send_many(address, sent)
            replies = replies[1::2] if asking else replies
            if not isinstance(replies[0], RedisError | OSError):
                return replies
            target = self.next_target(replies[0], key, target, detour)

    def close(self) -> None:
        """Close the connections to all nodes."""
        if self._owns_table:
            self.table.close()
        nodes, self._nodes = list(self._nodes.values()), {}
        for node in nodes:
            node.close()
        super().close()

    def abort(self) -> None:
        """Make pending calls fail. Any thread."""
        for node in list(self._nodes.values()):
            with contextlib.suppress(RedisError, OSError):
                node.connection_pool.disconnect(inuse_connections=True)

    def owner(self, key: bytes | str | None) -> NodeAddress:
        """Return the node of a key. Fetches the slot table again if it is in doubt."""
        if not self.table.is_known:
            try:
                self.table.refresh()
            except (RedisError, OSError):
                if not self.table.masters:
                    raise
        return self.table.owner(key)

    def node(self, address: NodeAddress) -> redis.Redis:
        """Return the client of one node."""
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = clone_to(self.seeds.template, address, timeout_s=self._timeout_s)
        return node

    # ------------------------------------------------------------ inside

    def _send(self, target: NodeTarget, args: Sequence[Any], options: dict[str, Any]) -> Any:
        address, asking = target
        if not asking:
            return self.node(address).execute_command(*args, **options)  # type: ignore[no-untyped-call]
        _, reply = self._send_many(address, [ASKING, (args, options)])
        if isinstance(reply, RedisError | OSError):
            raise reply
        return reply

    def _send_many(self, address: NodeAddress, commands: Sequence[NodeCommand]) -> list[Any]:
        with self.node(address).pipeline(transaction=False) as pipe:
            for args, options in commands:
                pipe.execute_command(*args, **options)  # type: ignore[no-untyped-call]
            try:
                replies: list[Any] = pipe.execute(raise_on_error=False)
            except (RedisError, OSError) as error:
                return [error] * len(commands)
        return replies

    def _follow(self, command: NodeCommand, key: bytes | None, target: NodeTarget, failure: ConnectionFailure) -> Any:
        """Send a command to the node that a redirect names, until a node executes it or none is left to try."""
        detour = Detour(self._timeout_s)
        while True:
            target = self.next_target(failure, key, target, detour)
            try:
                return self._send(target, *command)
            except (RedisError, OSError) as error:
                failure = error

    def next_target(
        self, failure: ConnectionFailure, key: bytes | str | None, target: NodeTarget, detour: Detour
    ) -> NodeTarget:
        """Return where a failed command goes next; raise ``failure`` if it must not be sent again."""
        redirect = detour.after(failure)
        if redirect is None or key is None:
            if isinstance(failure, ResponseError):
                raise failure
            return self._new_owner(failure, key, target)
        time.sleep(redirect.pause_s)
        return self.table.follow(redirect, failure, target[0]) or (self.owner(key), False)

    def _new_owner(self, failure: ConnectionFailure, key: bytes | str | None, target: NodeTarget) -> NodeTarget:
        """Return the slot's new owner for a command that was not sent; else raise."""
        self.table.doubt()
        if no_connection(failure) is not None:
            owner = self.owner(key)
            if owner != target[0]:
                return owner, False
        raise failure


class SyncClusterPipeline(Pipeline):
    """Collects commands and sends them with ``SyncClusterClient.execute_many``."""

    def __init__(self, cluster: SyncClusterClient) -> None:
        super().__init__(cluster.connection_pool, cluster.response_callbacks, False, None)  # noqa: FBT003
        self._cluster = cluster

    def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT001, FBT002 - redis-py's signature
        """Send what was collected. Each reply is in the place of its command."""
        commands: list[NodeCommand] = [(args, dict(options)) for args, options in self.command_stack]
        self.reset()
        replies = self._cluster.execute_many(commands)
        return raise_first_error(replies) if raise_on_error else replies
