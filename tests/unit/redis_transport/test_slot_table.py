"""Slots of a Redis Cluster."""

from conquiet.redis_transport.slot_table import owners


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
