"""Redis Cluster: send commands to the nodes of their keys, and follow redirects. For clients and connections.

The rules are written once. A synchronous user gives the router functions that never suspend (``sync_router``), and
its coroutines then end at their first step (``run_without_loop``): no event loop is needed.

A node that redirects has done nothing, so the command is sent to the node that it names. A command that was not sent,
because its node cannot be reached, goes to the slot's new owner if there is one. After a lost reply nothing is sent
again.

See docs/decisions/0015.
"""

import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

from redis.exceptions import RedisError, ResponseError

from conquiet.redis_transport.connect_errors import no_connection
from conquiet.redis_transport.routing import CommandRedirects, ConnectionFailure, NodeAddress, NodeTarget
from conquiet.redis_transport.slot_table import SlotTable

C = TypeVar("C")
P = ParamSpec("P")
T = TypeVar("T")
Key = bytes | str | None
ForEach = Callable[[Callable[[NodeAddress], Awaitable[None]], Iterable[NodeAddress]], Awaitable[object]]


class ClusterRouter(Generic[C]):
    """Sends commands by key. ``C`` is a command in the form that ``send`` takes.

    Args:
        table: The owners of the slots.
        timeout_s: Longest total time of the redirects of a command.
        asking: The command ASKING.
        send: Sends commands to one node, on one connection. Returns their replies, and errors in place of replies.
        for_each: Calls a step for each item: concurrently, or one after the other.
        fetch: Fetches the slot table.
        pause: Waits.
    """

    def __init__(
        self,
        table: SlotTable,
        timeout_s: float,
        *,
        asking: C,
        send: Callable[[NodeAddress, Sequence[C]], Awaitable[list[Any]]],
        for_each: ForEach,
        fetch: Callable[[], Awaitable[None]],
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._table = table
        self._timeout_s = timeout_s
        self._asking = asking
        self._send = send
        self._for_each = for_each
        self._fetch = fetch
        self._pause = pause

    async def execute(self, key: Key, command: C) -> Any:
        """Send one command and return its reply. Raises redis-py's errors."""
        address = await self.owner(key)
        (reply,) = await self._send(address, [command])
        return await self._follow(key, command, address, reply)

    async def execute_many(self, commands: Sequence[tuple[Key, C]]) -> list[Any]:
        """Send commands with their keys, all for one node together. Return their replies; errors are among them."""
        replies: list[Any] = [None] * len(commands)
        places_of: dict[NodeAddress, list[int]] = {}
        for place, (key, _) in enumerate(commands):
            places_of.setdefault(await self.owner(key), []).append(place)

        async def send(address: NodeAddress) -> None:
            sent = [commands[place] for place in places_of[address]]
            found = await self._send(address, [command for _, command in sent])
            for place, reply in zip(places_of[address], await self.follow_all(address, sent, found), strict=True):
                replies[place] = reply

        await self._for_each(send, places_of)
        return replies

    async def follow_all(
        self, address: NodeAddress, commands: Sequence[tuple[Key, C]], replies: list[Any]
    ) -> list[Any]:
        """Return the replies of one node with redirected and unsent commands followed; errors are among them."""
        for place, (key, command) in enumerate(commands):
            if isinstance(replies[place], ConnectionFailure):
                try:
                    replies[place] = await self._follow(key, command, address, replies[place])
                except (RedisError, OSError) as error:
                    replies[place] = error
        return replies

    async def send_together(self, key: Key, commands: Sequence[C]) -> list[Any]:
        """Send commands to one node, on one connection, and return their replies; refusals are among them.

        If the first is redirected, all of them are sent to the other node: the first has done nothing, and the others
        must follow it.
        """
        target = (await self.owner(key), False)
        redirects = CommandRedirects(self._timeout_s)
        while True:
            replies = await self._send_to(target, commands)
            if not isinstance(replies[0], ConnectionFailure):
                return replies
            try:
                target = await self._next(replies[0], key, target, redirects)
            except ResponseError:
                return replies

    async def owner(self, key: Key) -> NodeAddress:
        """Return the node of a key; of no key: any master. Fetches the slot table again if it is in doubt."""
        if not self._table.is_known:
            try:
                await self._fetch()
            except (RedisError, OSError):
                if not self._table.masters:
                    raise
        return self._table.owner(key)

    async def _send_to(self, target: NodeTarget, commands: Sequence[C]) -> list[Any]:
        address, asking = target
        if not asking:
            return await self._send(address, commands)
        replies = await self._send(address, [one for command in commands for one in (self._asking, command)])
        return replies[1::2]

    async def _follow(self, key: Key, command: C, address: NodeAddress, reply: Any) -> Any:
        """Send a command to the node that a redirect names, until a node executes it or none is left to try."""
        redirects = CommandRedirects(self._timeout_s)
        target = (address, False)
        while isinstance(reply, ConnectionFailure):
            target = await self._next(reply, key, target, redirects)
            (reply,) = await self._send_to(target, [command])
        return reply

    async def _next(
        self, failure: ConnectionFailure, key: Key, target: NodeTarget, redirects: CommandRedirects
    ) -> NodeTarget:
        """Return where a failed command goes next; raise ``failure`` if it must not be sent again."""
        redirect = redirects.after(failure)
        with contextlib.suppress(RedisError, OSError):  # no owner is known: see ``failure``
            if redirect is not None and key is not None:
                await self._pause(redirect.pause_s)
                return self._table.follow(redirect, failure, target[0]) or (await self.owner(key), False)
            if not isinstance(failure, ResponseError):
                self._table.doubt()
                if no_connection(failure) is not None and (owner := await self.owner(key)) != target[0]:
                    return owner, False
        raise failure


def sync_router(
    table: SlotTable, timeout_s: float, *, asking: C, send: Callable[[NodeAddress, Sequence[C]], list[Any]]
) -> ClusterRouter[C]:
    """Return a router without asyncio; call its methods with ``run_without_loop``."""
    fetch, pause = _immediate(table.refresh), _immediate(time.sleep)
    return ClusterRouter(
        table, timeout_s, asking=asking, send=_immediate(send), for_each=_in_turn, fetch=fetch, pause=pause
    )


async def _in_turn(step: Callable[[NodeAddress], Awaitable[None]], nodes: Iterable[NodeAddress]) -> None:
    for node in nodes:
        await step(node)


def _immediate(call: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    async def called(*args: P.args, **kwargs: P.kwargs) -> T:
        return call(*args, **kwargs)

    return called
