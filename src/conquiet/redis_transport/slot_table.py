"""The slot table of a Redis Cluster: the owner of each slot, and connections to the nodes. Usable from any thread.

The table is fetched by synchronous clients: the heartbeat's thread needs it while the event loop is blocked. Asyncio
code fetches it in the table's own thread: handlers may occupy all threads of asyncio's default executor.

See docs/decisions/0015.
"""

import asyncio
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from redis.exceptions import ClusterDownError, RedisError
from redis.exceptions import ConnectionError as NodeUnreachableError

from conquiet.redis_transport.client import ClusterSeeds, SyncClient, abort_client, clone_to
from conquiet.redis_transport.routing import ConnectionFailure, NodeAddress, NodeTarget, Redirect, slot_of

_FETCH_TIMEOUT_S = 2.0
_FRESH_S = 0.2
"""Time for which a slot table is not fetched again. Several connections break together."""


def owners(reply: Iterable[Any], queried: NodeAddress) -> dict[range, NodeAddress]:
    """Return the owner of each range of slots from a reply to CLUSTER SLOTS. Pure.

    A node that does not know its own address leaves it empty: it is the address that the reply came from.
    """
    found: dict[range, NodeAddress] = {}
    for first, last, (host, port, *_), *_ in reply:
        name = host.decode() if isinstance(host, bytes) else host or ""
        found[range(first, last + 1)] = (queried[0] if name in {"", "?"} else name, port)
    return found


class SlotTable:
    """The owners of all slots, as last read from a node. Opens no connection before the first ``refresh``.

    Args:
        seeds: How to reach the nodes.
    """

    def __init__(self, seeds: ClusterSeeds) -> None:
        self.seeds = seeds
        self._addresses = list(seeds.addresses)
        self._owners: dict[range, NodeAddress] = {}
        self._corrections: dict[int, NodeAddress] = {}
        self._lock = threading.Lock()
        self._fetched_at = -_FRESH_S
        self._doubted_at = 0.0
        self._fetching: SyncClient | None = None
        self._ended = False
        self._thread: ThreadPoolExecutor | None = None

    @property
    def is_known(self) -> bool:
        """True once the table was fetched, and no owner has been found unreachable since."""
        return bool(self._owners) and self._fetched_at > self._doubted_at

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

    def address_in(self, error_address: NodeAddress, queried: NodeAddress) -> NodeAddress:
        """Return the address to reach a node at that a redirect names. A redirect without a host means the same one."""
        host, port = error_address
        return self.seeds.remap((host or queried[0], port))

    def follow(self, redirect: Redirect, failure: ConnectionFailure, queried: NodeAddress) -> NodeTarget | None:
        """Return the node that a redirect names and correct the table by it; None: the owner of the slot.

        Args:
            redirect: The next step after the refusal.
            failure: The refusal.
            queried: The node that refused.
        """
        if redirect.address is None:
            if isinstance(failure, ClusterDownError):
                self.doubt()
            return None
        address = self.address_in(redirect.address, queried)
        if not redirect.asking:
            self.correct(redirect.slot, address)
        return address, redirect.asking

    def correct(self, slot: int, address: NodeAddress) -> None:
        """Record the owner that a MOVED has named, until the whole table is fetched again."""
        self._corrections[slot] = address
        if address not in self._owners.values():
            self.doubt()

    def doubt(self) -> None:
        """Record that an owner could not be reached: the table is fetched before the next command."""
        self._doubted_at = time.monotonic()

    def refresh(self) -> None:
        """Fetch the table unless it is fresh and not in doubt.

        Raises:
            RedisError: No node replied.
            OSError: No node replied.
        """
        with self._lock:
            if time.monotonic() - self._fetched_at >= _FRESH_S or self._fetched_at <= self._doubted_at:
                self._fetch()

    async def refresh_async(self) -> None:
        """Do what ``refresh`` does, without blocking the event loop."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="conquiet-cluster")
        await asyncio.get_running_loop().run_in_executor(self._thread, self.refresh)

    def abort(self) -> None:
        """Make a running fetch fail, and every later one. Takes no lock: its holder may be the call to abort."""
        self._ended = True
        fetching = self._fetching
        if fetching is not None:
            abort_client(fetching)

    def close(self) -> None:
        """End the thread. The table may be used again: a new thread is made when needed."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=False, cancel_futures=True)

    def try_lock(self) -> bool:
        """Take the lock of ``refresh`` if no fetch is running; then ``unlock`` it."""
        return self._lock.acquire(blocking=False)

    def unlock(self) -> None:
        """Release what ``try_lock`` has taken."""
        self._lock.release()

    def _fetch(self) -> None:
        """Query the nodes one by one and use the first reply. The next fetch begins with another node.

        The node that replied may be isolated, and its table old. Nodes that did not reply are tried last.
        """
        silent: list[NodeAddress] = []
        failure: RedisError | OSError = NodeUnreachableError("no node of the cluster is known")
        fetched_at = time.monotonic()
        for address in list(self._addresses):
            if self._ended:
                raise NodeUnreachableError("the engine has ended")
            self._addresses.append(self._addresses.pop(0))
            client = self._fetching = clone_to(self.seeds.template, address, timeout_s=_FETCH_TIMEOUT_S)
            try:
                reply: Any = client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
            except (RedisError, OSError) as error:
                failure = error
                silent.append(address)
                continue
            finally:
                self._fetching = None
                client.close()
            found = {slots: self.seeds.remap(owner) for slots, owner in owners(reply, address).items()}
            if found:
                self._use(found, fetched_at)
                self._addresses.sort(key=lambda known: known in silent)  # the others keep their order
                return
        raise failure

    def _use(self, found: dict[range, NodeAddress], fetched_at: float) -> None:
        self._owners = found
        self._corrections = {}
        # Forget removed nodes: where nodes return under other addresses, finding a live one would take longer each
        # time.
        known = {*found.values(), *self.seeds.addresses}
        self._addresses = [other for other in dict.fromkeys([*self._addresses, *known]) if other in known]
        self._fetched_at = fetched_at
