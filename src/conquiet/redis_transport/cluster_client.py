"""Clients of a Redis Cluster with the interface of a client of one server. Each command is sent once.

redis-py's own cluster clients repeat commands after a lost reply, so only their addresses are used. These clients send
each command to the node that holds its key, by a client of that node without retries, and follow redirects
(``routing``): a node that redirects has done nothing. A command that was not sent, because its node cannot be reached,
goes to the slot's new owner if there is one. A lost reply leaves the command in doubt, and it is not repeated.

See docs/decisions/0015.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

import redis
import redis.asyncio
from redis.asyncio.client import Pipeline as AsyncPipeline
from redis.client import Pipeline
from redis.exceptions import RedisError

from conquiet.core.threads import run_without_loop
from conquiet.redis_transport.client import ClusterRouted, ClusterSeeds, abort_client, clone_async, clone_sync, clone_to
from conquiet.redis_transport.cluster_router import ClusterRouter, sync_router
from conquiet.redis_transport.routing import ASKING, NodeAddress, NodeCommand, key_of, raise_first_error
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
        self._router = ClusterRouter(
            self.table,
            socket_timeout_s,
            asking=ASKING,
            send=self._send,
            for_each=lambda step, nodes: asyncio.gather(*map(step, nodes)),
            fetch=self.table.refresh_async,
            pause=asyncio.sleep,
        )
        self._nodes: dict[NodeAddress, redis.asyncio.Redis] = {}

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send one command and return its reply. Raises redis-py's errors."""
        return await self._router.execute(key_of(args), (args, options))

    def pipeline(self, transaction: bool = False, shard_hint: str | None = None) -> Any:  # noqa: FBT001, FBT002, ARG002 - redis-py's signature
        """Return a pipeline over all nodes. There is no transaction: one cannot follow a slot that moves."""
        _reject_transaction(transaction)
        return AsyncClusterPipeline(self)

    async def execute_many(self, commands: Sequence[NodeCommand]) -> list[Any]:
        """Send commands, one pipeline per node, and return their replies; errors are among them."""
        return await self._router.execute_many([(key_of(command[0]), command) for command in commands])

    async def send_together(self, commands: Sequence[NodeCommand]) -> list[Any]:
        """Send commands on one connection; see ``ClusterRouter.send_together``."""
        return await self._router.send_together(key_of(commands[0][0]), commands)

    def node(self, address: NodeAddress) -> redis.asyncio.Redis:
        """Return the client of one node."""
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = clone_async(self.seeds.template, socket_timeout_s=self._timeout_s)
            node.connection_pool.connection_kwargs |= {"host": address[0], "port": address[1]}
        return node

    async def aclose(self, close_connection_pool: bool | None = None) -> None:  # noqa: FBT001 - redis-py's signature
        """Close the connections to all nodes."""
        self.table.close()
        nodes, self._nodes = list(self._nodes.values()), {}
        for node in nodes:
            await node.aclose()
        await super().aclose(close_connection_pool)

    async def _send(self, address: NodeAddress, commands: Sequence[NodeCommand]) -> list[Any]:
        node = self.node(address)
        try:
            if len(commands) == 1:
                ((args, options),) = commands
                return [await node.execute_command(*args, **options)]  # type: ignore[no-untyped-call]
            async with node.pipeline(transaction=False) as pipe:
                for args, options in commands:
                    pipe.execute_command(*args, **options)
                replies: list[Any] = await pipe.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            return [error] * len(commands)
        return replies


class AsyncClusterPipeline(AsyncPipeline):
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


class SyncClusterClient(ClusterRouted, redis.Redis):
    """Does what ``AsyncClusterClient`` does, without asyncio. For several threads.

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
        self.router = sync_router(self.table, socket_timeout_s, asking=ASKING, send=self._send)
        self._nodes: dict[NodeAddress, redis.Redis] = {}

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send one command and return its reply. Raises redis-py's errors."""
        return run_without_loop(self.router.execute(key_of(args), (args, options)))

    def pipeline(self, transaction: bool = False, shard_hint: str | None = None) -> Any:  # noqa: FBT001, FBT002, ARG002 - redis-py's signature
        """Return a pipeline over all nodes. There is no transaction: one cannot follow a slot that moves."""
        _reject_transaction(transaction)
        return SyncClusterPipeline(self)

    def execute_many(self, commands: Sequence[NodeCommand]) -> list[Any]:
        """Send commands, one pipeline per node, and return their replies; errors are among them."""
        return run_without_loop(self.router.execute_many([(key_of(command[0]), command) for command in commands]))

    def send_together(self, commands: Sequence[NodeCommand]) -> list[Any]:
        """Send commands on one connection; see ``ClusterRouter.send_together``."""
        return run_without_loop(self.router.send_together(key_of(commands[0][0]), commands))

    def node(self, address: NodeAddress) -> redis.Redis:
        """Return the client of one node."""
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = clone_to(self.seeds.template, address, timeout_s=self._timeout_s)
        return node

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
            abort_client(node)

    def _send(self, address: NodeAddress, commands: Sequence[NodeCommand]) -> list[Any]:
        node = self.node(address)
        try:
            if len(commands) == 1:
                ((args, options),) = commands
                return [node.execute_command(*args, **options)]  # type: ignore[no-untyped-call]
            with node.pipeline(transaction=False) as pipe:
                for args, options in commands:
                    pipe.execute_command(*args, **options)  # type: ignore[no-untyped-call]
                replies: list[Any] = pipe.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            return [error] * len(commands)
        return replies


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


def _reject_transaction(transaction: bool) -> None:  # noqa: FBT001 - see ``pipeline``
    if transaction:
        raise NotImplementedError("a transaction on a Redis Cluster: use a script")
