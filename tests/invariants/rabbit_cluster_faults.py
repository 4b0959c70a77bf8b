"""Faults of a RabbitMQ cluster, for the storm of test_a_rabbitmq_cluster_loses_nothing.

A killed node takes a quarter of a minute to rejoin. Meanwhile connections to the other two are closed: a separate
fault, which leaves a majority. The time of a kill ends when other nodes lead the queues: the return of a node is not a
fault, and excuses no second delivery.
"""

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

from tests.invariants.histories import History

from conquiet.testing import RabbitMQClusterServer, wait_until
from conquiet.testing.errors import ServerStateError
from conquiet.testing.rabbitmq_cluster import RabbitMQNode

KINDS = ("kill_leader", "drain_leader", "cut_off", "kill_any", "pause_leader")
QUEUES = ("work", "counted", "dead")
PAUSE_S = 3.0


class Pace:
    """Couples faults and messages: each fault has its batch, and neither runs ahead of the other."""

    def __init__(self, wanted: int, within_s: float) -> None:
        self.wanted = wanted
        self.begun = 0
        self.ended = False
        self._until = time.monotonic() + within_s
        self._sent = threading.Semaphore(0)

    @property
    def goes_on(self) -> bool:
        """True while more faults are wanted, and there is time for them."""
        return self.begun < self.wanted and time.monotonic() < self._until

    def batch_begins(self) -> None:
        """Allow one more fault."""
        self._sent.release()

    def fault_begins(self) -> None:
        """Wait for the batch of the next fault, and count the fault."""
        if not self._sent.acquire(timeout=600):
            raise TimeoutError("no more messages are sent")
        self.begun += 1


class Faults:
    """Injects as many faults as ``pace`` wants; to be run in a thread."""

    def __init__(self, cluster: RabbitMQClusterServer, vhost: str, history: History, pace: Pace) -> None:
        self._cluster, self._vhost, self._history, self._pace = cluster, vhost, history, pace
        self._dice = random.Random(history.seed)

    def run(self) -> None:
        try:
            for kind in itertools.cycle(KINDS):
                if not self._pace.goes_on:
                    return
                getattr(self, f"_{kind}")()
        finally:
            self._pace.ended = True

    @contextlib.contextmanager
    def _fault(self, kind: str) -> Iterator[None]:
        self._pace.fault_begins()
        with self._history.outage(kind):
            yield

    def _kill_leader(self) -> None:
        self._kill("kill leader", self._leader())

    def _kill_any(self) -> None:
        self._kill("kill any", self._dice.choice(self._cluster.nodes))

    def _kill(self, kind: str, node: RabbitMQNode) -> None:
        with self._fault(kind):
            node.kill()
            wait_until(lambda: self._leads_nothing(node), timeout_s=120, interval_s=0.2)
        others = [one for one in self._cluster.nodes if one is not node]
        with ThreadPoolExecutor(1) as pool:
            revived = pool.submit(self._cluster.revive, node)
            for _ in range(2):
                if self._pace.goes_on:
                    self._close_connections(others)
            revived.result()

    def _drain_leader(self) -> None:
        with self._fault("drain leader"), self._cluster.drain(self._leader()):
            pass

    def _cut_off(self) -> None:
        with self._fault("cut off"), self._cluster.isolate(self._dice.choice(self._cluster.nodes)):
            pass

    def _pause_leader(self) -> None:
        node = self._leader()
        with self._fault("pause leader"):
            node.pause()
            time.sleep(PAUSE_S)
            node.resume()

    def _close_connections(self, nodes: list[RabbitMQNode]) -> None:
        """Close all connections of the storm, as the nodes that run know them; at least one."""
        with self._fault("close connections"):
            # A node learns of a new connection seconds after it was opened: without one the fault would hit nothing.
            wait_until(lambda: sum(map(self._close_connections_of, nodes)) > 0, timeout_s=120, interval_s=0.2)

    def _close_connections_of(self, node: RabbitMQNode) -> int:
        """Return how many connections were closed."""
        closed = 0
        with contextlib.suppress(OSError):  # it is busy with the loss of the other
            for connection in node.api("GET", "/api/connections"):
                if connection.get("vhost") == self._vhost and connection.get("node") == node.node:
                    path = f"/api/connections/{quote(connection['name'], safe='')}"
                    node.api("DELETE", path, missing_ok=True)
                    closed += 1
        return closed

    def _leader(self) -> RabbitMQNode:
        """Return the node that leads one of the queues."""
        queue = self._dice.choice(QUEUES)
        found: list[RabbitMQNode] = []

        def is_known() -> bool:
            with contextlib.suppress(OSError, ServerStateError):  # between two leaders there is none
                found.append(self._cluster.leader_of(queue, self._vhost))
            return bool(found)

        wait_until(is_known, timeout_s=120, interval_s=0.2)
        return found[0]

    def _leads_nothing(self, node: RabbitMQNode) -> bool:
        try:
            return all(self._cluster.leader_of(queue, self._vhost) is not node for queue in QUEUES)
        except (OSError, ServerStateError):
            return False
