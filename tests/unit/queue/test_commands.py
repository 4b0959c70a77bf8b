"""Commands of one consumer on its stream and group."""

import pytest
from tests.packed_commands import unpack

from conquiet.queue.commands import AddCommand, StreamCommands

COMMANDS = StreamCommands("orders", "billing", "alice")


@pytest.mark.spec("RS-003.4", "RS-005.18", "RS-005.25", "RS-005.7")
@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (COMMANDS.create_group(), "XGROUP CREATE orders billing 0-0 MKSTREAM"),
        (AddCommand("orders").pack(b"{}"), "XADD orders * data {}"),
        (COMMANDS.read_new(500, 2), "XREADGROUP GROUP billing alice COUNT 2 BLOCK 500 STREAMS orders >"),
        (COMMANDS.read_own("0-0", 9), "XREADGROUP GROUP billing alice COUNT 9 STREAMS orders 0-0"),
        (COMMANDS.ack("1-1"), "XACK orders billing 1-1"),
        (COMMANDS.ack_all(["1-1", "2-1"]), "XACK orders billing 1-1 2-1"),
        (COMMANDS.consumers(), "XINFO CONSUMERS orders billing"),
        (COMMANDS.pending(count=5, min_idle_ms=7), "XPENDING orders billing IDLE 7 - + 5"),
        (COMMANDS.pending(count=5, start="(1-1", consumer=b"bob"), "XPENDING orders billing (1-1 + 5 bob"),
        (COMMANDS.pending_of_own("1-1", "2-2", 5), "XPENDING orders billing 1-1 2-2 5 alice"),
        (COMMANDS.claim(60, ["1-1", "2-1"]), "XCLAIM orders billing alice 60 1-1 2-1"),
        (COMMANDS.exists("1-1"), "XRANGE orders 1-1 1-1 COUNT 1"),
    ],
)
def test_the_commands_are_the_ones_of_the_specification(packed: bytes, words: str) -> None:
    assert unpack(packed) == [words.encode().split(b" ")]


def test_many_different_waits_do_not_grow_the_memory() -> None:
    commands = StreamCommands("orders", "billing", "alice")

    for wait in range(1, 1000):
        commands.read_new(wait, 1)

    assert len(commands._reads) <= 8
