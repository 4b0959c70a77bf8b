"""Slots of a Redis Cluster."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
import redis.exceptions

from conquiet.redis_transport.slot_table import SlotTable, owners


def test_the_owners_of_slots_are_read_from_the_reply() -> None:
    reply = [
        [0, 5460, [b"10.0.0.1", 7000, b"id", []], [b"10.0.0.9", 7009, b"id", []]],
        [5461, 10922, [b"", 7001, b"id"]],
        [10923, 16383, [None, 7002, b"id"]],
    ]

    assert owners(reply, ("there", 1)) == {
        range(5461): ("10.0.0.1", 7000),
        range(5461, 10923): ("there", 7001),
        range(10923, 16384): ("there", 7002),
    }


def a_table() -> SlotTable:
    seeds: Any = SimpleNamespace(addresses=[("seed", 1)], remap=lambda address: address)
    table = SlotTable(seeds)
    table._use({range(100): ("old", 1), range(100, 16384): ("kept", 2)}, time.monotonic())
    return table


def test_a_node_that_has_left_the_cluster_is_not_asked_again() -> None:
    table = a_table()
    table._use({range(16384): ("kept", 2)}, time.monotonic())

    assert set(table._addresses) == {("seed", 1), ("kept", 2)}


class Cluster:
    """Nodes that are queried for the slot table, and the order of the queries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *nodes: str, silent: str = "") -> None:
        self.asked: list[str] = []
        self.silent = silent
        self.nodes = nodes
        monkeypatch.setattr("conquiet.redis_transport.slot_table.clone_to", self.node)
        addresses = [(name, 1) for name in nodes]
        seeds: Any = SimpleNamespace(addresses=addresses, remap=lambda address: address, template=None)
        self.table = SlotTable(seeds)

    def node(self, _: object, address: tuple[str, int], **__: object) -> Any:
        def execute_command(*_: str) -> list[Any]:
            self.asked.append(address[0])
            if address[0] == self.silent:
                raise redis.exceptions.TimeoutError
            return [[slot, slot, [name.encode(), 1, b"id"]] for slot, name in enumerate(self.nodes)]

        return SimpleNamespace(execute_command=execute_command, close=lambda: None)

    def ask(self) -> None:
        self.table.doubt()
        self.table.refresh()


@pytest.mark.parametrize("nodes", [("silent", "b"), ("silent", "b", "c"), ("silent", "b", "c", "d")])
def test_a_node_that_did_not_answer_is_not_asked_first_again(
    monkeypatch: pytest.MonkeyPatch, nodes: tuple[str, ...]
) -> None:
    """Each query to it takes the whole timeout, and during a fail-over there are many."""
    cluster = Cluster(monkeypatch, *nodes, silent="silent")

    cluster.ask()
    cluster.ask()

    assert cluster.asked[:2] == ["silent", "b"]
    assert cluster.asked[2:] == [nodes[2] if len(nodes) > 2 else "b"]


def test_a_node_that_answered_is_not_asked_first_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be isolated from the others and still return its old table."""
    cluster = Cluster(monkeypatch, "a", "b", "c")

    for _ in range(4):
        cluster.ask()

    assert cluster.asked == ["a", "b", "c", "a"]


def test_a_redirect_to_an_unknown_node_puts_the_table_in_doubt() -> None:
    table = a_table()
    table.correct(5, ("kept", 2))
    assert table.is_known

    table.correct(5, ("new", 3))
    assert not table.is_known
