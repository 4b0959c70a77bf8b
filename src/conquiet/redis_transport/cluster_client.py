"""An asyncio client of a Redis Cluster with the interface of a client of one server. Each command is sent once.

redis-py's own cluster client repeats commands after a lost reply, so only its addresses are used. This client sends
each command to the node that holds its key, by a client of that node without retries, and follows redirects
(``routing``): a node that redirects has done nothing. A command that was not sent, because its node cannot be reached,
goes to the slot's new owner if there is one. A lost reply leaves the command in doubt, and it is not repeated.

``sync_cluster_client`` is the same without asyncio.

See docs/decisions/0015.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

import redis.asyncio
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError, ResponseError

from conquiet.redis_transport.client import ClusterRouted, ClusterSeeds, clone_async
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


class AsyncClusterClient(ClusterRouted, redis.asyncio.Redis):  # type: ignore[misc]  # redis-py's own bases disagree
    """Sends each command to the node of its key.

    Args:
        seeds: How to reach the nodes.
        socket_timeout_s: Longest wait for a reply, and longest total time of its redirects.
    """

    def __init__(self, seeds: ClusterSeeds, *, socket_timeout_s: float) -> None:
        template = clone_async(seeds.template, socket_timeout_s=socket_timeout_s)
        super().__init__(connection_pool=template.connection_pool)
        self.seeds = seeds
        self.table = SlotTable(seeds)
        self._timeout_s = socket_timeout_s
        self._nodes: dict[NodeAddress, redis.asyncio.Redis] = {}

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send one command and return its reply. Raises redis-py's errors."""
        key = key_of(args)
        target = (await self._owner(key), False)
        try:
            return await self._send(target, args, options)
        except (RedisError, OSError) as error:
            failure: ConnectionFailure = error
        return await self._follow((args, options), key, target, failure)

    def pipeline(self, transaction: bool = False, shard_hint: str | None = None) -> Any:  # noqa: FBT001, FBT002, ARG002 - redis-py's signature
        """Return a pipeline over all nodes. There is no transaction: one cannot follow a slot that moves."""
        if transaction:
            raise NotImplementedError("a transaction on a Redis Cluster: use a script")
        return AsyncClusterPipeline(self)

    def node_of(self, key: str) -> redis.asyncio.Redis:
        """Return the client of the last known owner of a key, or this one if none is known."""
        try:
            return self._node(self.table.owner(key))
        except RedisError:
            return self

    async def execute_many(self, commands: Sequence[NodeCommand]) -> list[Any]:
        """Send commands, one pipeline per node, and return their replies; errors are among them."""
        keys = [key_of(args) for args, _ in commands]
        by_node: dict[NodeAddress, list[int]] = {}
        for place, key in enumerate(keys):
            by_node.setdefault(await self._owner(key), []).append(place)
        replies: list[Any] = [None] * len(commands)

        async def send(address: NodeAddress, places: list[int]) -> None:
            answers = await self._send_many(address, [commands[place] for place in places])
            for place, answer in zip(places, answers, strict=True):
                replies[place] = answer
                if isinstance(answer, RedisError | OSError):
                    replies[place] = await self._followed(commands[place], keys[place], (address, False), answer)

        await asyncio.gather(*(send(address, places) for address, places in by_node.items()))
        return replies

    async def send_together(self, commands: Sequence[NodeCommand]) -> list[Any]:
        """Send commands to one node, on one connection, and return their replies.

        If the first is redirected, all of them are sent to the other node: the first has done nothing, and the others
        must follow it. Refusals of the others are among the replies.
        """
        key = key_of(commands[0][0])
        target = (await self._owner(key), False)
        detour = Detour(self._timeout_s)
        while True:
            address, asking = target
            sent = [one for command in commands for one in (ASKING, command)] if asking else commands
            replies = await self._send_many(address, sent)
            replies = replies[1::2] if asking else replies
            if not isinstance(replies[0], RedisError | OSError):
                return replies
            target = await self._next(replies[0], key, target, detour)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:  # noqa: FBT001 - redis-py's signature
        """Close the connections to all nodes."""
        self.table.close()
        nodes, self._nodes = list(self._nodes.values()), {}
        for node in nodes:
            await node.aclose()
        await super().aclose(close_connection_pool)

    # ------------------------------------------------------------ inside

    async def _owner(self, key: bytes | None) -> NodeAddress:
        if not self.table.is_known:
            try:
                await self.table.refresh_async()
            except (RedisError, OSError):
                if not self.table.masters:
                    raise
        return self.table.owner(key)

    def _node(self, address: NodeAddress) -> redis.asyncio.Redis:
        node = self._nodes.get(address)
        if node is None:
            node = clone_async(self.seeds.template, socket_timeout_s=self._timeout_s)
            node.connection_pool.connection_kwargs |= {"host": address[0], "port": address[1]}
            self._nodes[address] = node
        return node

    async def _send(self, target: NodeTarget, args: Sequence[Any], options: dict[str, Any]) -> Any:
        address, asking = target
        if not asking:
            return await self._node(address).execute_command(*args, **options)  # type: ignore[no-untyped-call]
        _, reply = await self._send_many(address, [ASKING, (args, options)])
        if isinstance(reply, RedisError | OSError):
            raise reply
        return reply

    async def _send_many(self, address: NodeAddress, commands: Sequence[NodeCommand]) -> list[Any]:
        async with self._node(address).pipeline(transaction=False) as pipe:
            for args, options in commands:
                pipe.execute_command(*args, **options)
            try:
                replies: list[Any] = await pipe.execute(raise_on_error=False)
            except (RedisError, OSError) as error:
                return [error] * len(commands)
        return replies

    async def _followed(
        self, command: NodeCommand, key: bytes | None, target: NodeTarget, failure: ConnectionFailure
    ) -> Any:
        try:
            return await self._follow(command, key, target, failure)
        except (RedisError, OSError) as error:
            return error

    async def _follow(
        self, command: NodeCommand, key: bytes | None, target: NodeTarget, failure: ConnectionFailure
    ) -> Any:
        """Send a command to the node that a redirect names, until a node executes it or none is left to try."""
        detour = Detour(self._timeout_s)
        while True:
            target = await self._next(failure, key, target, detour)
            try:
                return await self._send(target, *command)
            except (RedisError, OSError) as error:
                failure = error

    async def _next(
        self, failure: ConnectionFailure, key: bytes | None, target: NodeTarget, detour: Detour
    ) -> NodeTarget:
        redirect = detour.after(failure)
        if redirect is None or key is None:
            if isinstance(failure, ResponseError):
                raise failure
            return await self._new_owner(failure, key, target)
        await asyncio.sleep(redirect.pause_s)
        return self.table.follow(redirect, failure, target[0]) or (await self._owner(key), False)

    async def _new_owner(self, failure: ConnectionFailure, key: bytes | None, target: NodeTarget) -> NodeTarget:
        """Return the slot's new owner for a command that was not sent; else raise."""
        self.table.doubt()
        if no_connection(failure) is not None:
            owner = await self._owner(key)
            if owner != target[0]:
                return owner, False
        raise failure


class AsyncClusterPipeline(Pipeline):
    """Collects commands and sends them with ``AsyncClusterClient.execute_many``."""

    def __init__(self, cluster: AsyncClusterClient) -> None:
        super().__init__(cluster.connection_pool, cluster.response_callbacks, False, None)  # noqa: FBT003
        self._cluster = cluster

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT001, FBT002 - redis-py's signature
        """Send what was collected. Each reply is in the place of its command."""
        commands: list[NodeCommand] = [(args, dict(options)) for args, options in self.command_stack]
        await self.reset()  # type: ignore[no-untyped-call]
        replies = await self._cluster.execute_many(commands)
        return raise_first_error(replies) if raise_on_error else replies
