"""Slots of a Redis Cluster."""

import time
from types import SimpleNamespace
from typing import Any

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


def test_a_redirect_to_an_unknown_node_puts_the_table_in_doubt() -> None:
    table = a_table()
    table.correct(5, ("kept", 2))
    assert table.is_known

    table.correct(5, ("new", 3))
    assert not table.is_known
