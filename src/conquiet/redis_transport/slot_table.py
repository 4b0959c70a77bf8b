"""Which node of a Redis Cluster owns which slot, and how to reach the nodes. For any thread.

The nodes are asked by synchronous clients: the heartbeat's thread needs the answer while the event loop is blocked.
Asyncio code asks in a thread of the table's own: handlers may occupy all threads of asyncio's default executor.

See docs/decisions/0015.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from redis.exceptions import ConnectionError as NodeUnreachableError
from redis.exceptions import RedisError

from conquiet.redis_transport.client import ClusterSeeds, SyncClient, clone_to
from conquiet.redis_transport.routing import NodeAddress, slot_of

_ASK_TIMEOUT_S = 2.0
_FRESH_S = 0.2
"""How long a slot table is used without asking again. Several connections break together."""


def owners(reply: Iterable[Any], asked: NodeAddress) -> dict[range, NodeAddress]:
    """Return the owner of each range of slots from a reply to CLUSTER SLOTS. Pure.

    A node that does not know its own address leaves it empty: it is the address that was asked.
    """
    found: dict[range, NodeAddress] = {}
    for first, last, (host, port, *_), *_ in reply:
        name = host.decode() if isinstance(host, bytes) else host or ""
        found[range(first, last + 1)] = (asked[0] if name in {"", "?"} else name, port)
    return found


class SlotTable:
    """The owners of all slots, as last read from a node. Opens no connection before the first question.

    Args:
        seeds: How to reach the nodes.
    """

    def __init__(self, seeds: ClusterSeeds) -> None:
        self.seeds = seeds
        self._addresses = list(seeds.addresses)
        self._owners: dict[range, NodeAddress] = {}
        self._corrections: dict[int, NodeAddress] = {}
        self._lock = threading.Lock()
        self._asked_at = -_FRESH_S
        self._doubted_at = 0.0
        self._asking: SyncClient | None = None
        self._ended = False
        self._thread: ThreadPoolExecutor | None = None

    @property
    def is_known(self) -> bool:
        """True once a node has answered, and no owner has been found unreachable since."""
        return bool(self._owners) and self._asked_at > self._doubted_at

    @property
    def masters(self) -> list[NodeAddress]:
        """The nodes that own slots, in the order of their slots."""
        known = self._owners
        return list(dict.fromkeys(known[slots] for slots in sorted(known, key=lambda slots: slots.start)))

    def owner(self, key: str | bytes | None) -> NodeAddress:
        """Return the last known owner of a key; of no key: any master. Takes no lock.

        Raises:
            RedisError: The table has no owner for the slot.
        """
        if key is None:
            if self._owners:
                return next(iter(self._owners.values()))
            raise NodeUnreachableError("no node of the cluster is known")
        slot = slot_of(key)
        if slot in self._corrections:
            return self._corrections[slot]
        for slots, address in self._owners.items():
            if slot in slots:
                return address
        raise NodeUnreachableError("no node of the cluster has the slot of the stream")

    def address_in(self, error_address: NodeAddress, asked: NodeAddress) -> NodeAddress:
        """Return the address to reach a node at that a redirect names. A redirect without a host means the same one."""
        host, port = error_address
        return self.seeds.remap((host or asked[0], port))

    def correct(self, slot: int, address: NodeAddress) -> None:
        """Note the owner that a MOVED has named, until the whole table is asked for again."""
        self._corrections[slot] = address
        if address not in self._owners.values():
            self.doubt()

    def doubt(self) -> None:
        """Note that an owner could not be reached: ask before the next command."""
        self._doubted_at = time.monotonic()

    def ask(self) -> None:
        """Fetch the table unless it is fresh and not in doubt.

        Raises:
            RedisError: No node answered.
            OSError: No node answered.
        """
        with self._lock:
            if time.monotonic() - self._asked_at >= _FRESH_S or self._asked_at <= self._doubted_at:
                self._ask_nodes()

    async def ask_soon(self) -> None:
        """Do what ``ask`` does, without blocking the event loop."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="conquiet-cluster")
        await asyncio.get_running_loop().run_in_executor(self._thread, self.ask)

    def abort(self) -> None:
        """Make a question under way fail, and every later one. Takes no lock: its holder may be the call to abort."""
        self._ended = True
        asking = self._asking
        if asking is not None:
            with contextlib.suppress(RedisError, OSError):
                asking.connection_pool.disconnect(inuse_connections=True)

    def close(self) -> None:
        """End the thread. The table may be used again: a new thread is made when needed."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=False, cancel_futures=True)

    def try_lock(self) -> bool:
        """Take the lock of ``ask`` if no question is under way; then ``unlock`` it."""
        return self._lock.acquire(blocking=False)

    def unlock(self) -> None:
        """Release what ``try_lock`` has taken."""
        self._lock.release()

    def _ask_nodes(self) -> None:
        """Ask the nodes one by one and use the first answer. The next question begins with another node.

        The one that answered may be isolated, and its table old; those that did not answer come last.
        """
        silent: list[NodeAddress] = []
        failure: RedisError | OSError = NodeUnreachableError("no node of the cluster is known")
        asked_at = time.monotonic()
        for address in list(self._addresses):
            if self._ended:
                raise NodeUnreachableError("the engine has ended")
            self._addresses.append(self._addresses.pop(0))
            client = self._asking = clone_to(self.seeds.template, address, timeout_s=_ASK_TIMEOUT_S)
            try:
                reply: Any = client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
            except (RedisError, OSError) as error:
                failure = error
                silent.append(address)
                continue
            finally:
                self._asking = None
                client.close()
            found = {slots: self.seeds.remap(owner) for slots, owner in owners(reply, address).items()}
            if found:
                self._use(found, asked_at)
                self._addresses.sort(key=lambda known: known in silent)  # the others keep their order
                return
        raise failure

    def _use(self, found: dict[range, NodeAddress], asked_at: float) -> None:
        self._owners = found
        self._corrections = {}
        # Forget removed nodes: where nodes come back under other addresses, finding one that answers would take
        # longer each time.
        known = {*found.values(), *self.seeds.addresses}
        self._addresses = [other for other in dict.fromkeys([*self._addresses, *known]) if other in known]
        self._asked_at = asked_at
