"""The life of a private cluster: its nodes start together, and end together or with their owner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, TypeVar

from conquiet.testing.errors import ServerStateError
from conquiet.testing.process import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

N = TypeVar("N", bound=PrivateServer)


class PrivateCluster(ABC, Generic[N]):
    """Nodes that form one cluster. Use it as a context manager, or ``start`` and ``stop``. It starts once.

    Attributes:
        nodes: The nodes, from the start on, dead ones included.
    """

    def __init__(self) -> None:
        self.nodes: list[N] = []

    @abstractmethod
    def _form(self) -> None:
        """Add the nodes to ``nodes``, start them, and return once they are one cluster."""

    def start(self) -> Self:
        """Start all nodes and return once they are one cluster."""
        if self.nodes:
            raise ServerStateError("the cluster was started before")
        try:
            self._form()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End all nodes. May be called at any time and more than once."""
        concurrently(PrivateServer.stop, self.nodes)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def name(self) -> str:
        """The name of the product, then ``cluster``."""
        return f"{self.nodes[0].name} cluster"

    @property
    def version(self) -> str:
        """The version of the nodes."""
        return self.nodes[0].version

    def _any_node(self) -> N:
        """Return a node that runs."""
        for node in self.nodes:
            if node.is_running:
                return node
        raise ServerStateError("no node of the cluster runs")


def concurrently(step: Callable[[N], object], nodes: Sequence[N]) -> None:
    """Call ``step`` with every node, each in its own thread, and wait for all of them."""
    with ThreadPoolExecutor(max(1, len(nodes))) as pool:
        list(pool.map(step, nodes))
