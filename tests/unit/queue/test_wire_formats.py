"""Commands as bytes and replies in every shape, without a server."""

from enum import IntEnum, StrEnum
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from conquiet.queue.commands import StreamCommands, pack
from conquiet.queue.replies import (
    Entry,
    Pending,
    Standing,
    autoclaimed,
    entries,
    pending_rows,
    read_entries,
    read_entries_by_stream,
    standings,
)
from conquiet.queue.scripts import mark_key

COMMANDS = StreamCommands("orders", "billing", "alice")


def unpack(packed: bytes) -> list[list[bytes]]:
    """A command on the wire is an array of strings, so a reply parser reads it."""
    reader = hiredis.Reader()
    reader.feed(packed)
    found = []
    while (words := reader.gets()) is not False:
        found.append(words)
    return found


@given(st.lists(st.binary() | st.text(st.characters(exclude_categories=["Cs"])) | st.integers(), min_size=1))
def test_any_words_survive_packing(words: list[Any]) -> None:
    (read,) = unpack(pack(*words))

    assert read == [word if isinstance(word, bytes) else str(word).encode() for word in words]


class Counts(IntEnum):
    FEW = 7


class Places(StrEnum):
    BEGIN = "0-0"


def test_settings_may_come_out_of_an_enum() -> None:
    assert unpack(pack("COUNT", Counts.FEW, Places.BEGIN, b"x")) == [[b"COUNT", b"7", b"0-0", b"x"]]
    with pytest.raises(TypeError):
        pack("COUNT", None)  # type: ignore[arg-type]  # no guess at what was meant


@pytest.mark.spec("RS-003.4", "RS-005.18", "RS-005.25", "RS-005.7")
@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (COMMANDS.create_group(), "XGROUP CREATE orders billing 0-0 MKSTREAM"),
        (COMMANDS.add(b"{}"), "XADD orders * data {}"),
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


ENTRY = [b"1-1", [b"data", b"{}"]]


@pytest.mark.parametrize("nothing", [None, [], {}])
def test_nothing_comes_in_three_shapes(nothing: Any) -> None:
    assert read_entries(nothing) == []
    assert read_entries_by_stream(nothing) == {}
    assert entries(nothing) == []
    assert pending_rows(nothing) == []


@pytest.mark.parametrize(
    "reply",
    [
        [[b"orders", [ENTRY]]],
        {b"orders": [ENTRY]},
        [["orders", [("1-1", {b"data": b"{}"})]]],
        {"orders": [(b"1-1", {b"data": b"{}"})]},
    ],
    ids=["resp2", "resp3", "callbacks", "callbacks-dict"],
)
def test_an_entry_is_the_same_in_every_shape(reply: Any) -> None:
    assert read_entries(reply) == [Entry("1-1", [b"data", b"{}"])]
    assert read_entries_by_stream(reply) == {b"orders": [Entry("1-1", [b"data", b"{}"])]}


@pytest.mark.parametrize("gone", [None, {}, []])
def test_a_deleted_entry_is_not_an_empty_message(gone: Any) -> None:
    assert entries([[b"1-1", gone], None, ENTRY]) == [Entry("1-1", None), Entry("1-1", [b"data", b"{}"])]


def test_autoclaim_of_old_and_new_servers() -> None:
    assert autoclaimed([b"0-0", [ENTRY]]) == ("0-0", [Entry("1-1", [b"data", b"{}"])], [])
    assert autoclaimed([b"5-0", [ENTRY], [b"2-2"]]) == ("5-0", [Entry("1-1", [b"data", b"{}"])], ["2-2"])


def test_rows_of_pending_and_of_consumers() -> None:
    assert pending_rows([[b"1-1", b"bob", 70, 3]]) == [Pending("1-1", b"bob", 70, 3)]
    flat = [b"name", b"bob", b"pending", 2, b"idle", 50, b"inactive", 60]
    assert standings([flat]) == standings([dict(zip(flat[::2], flat[1::2], strict=True))]) == [Standing(b"bob", 2, 50)]


@pytest.mark.parametrize("stream", ["orders", "{shop}:orders", "a{b}c", "x{}y", "{", "a:b"])
def test_the_mark_of_an_idempotency_key_lies_in_the_slot_of_its_stream(stream: str) -> None:
    mark = mark_key(stream, "jane@example.org")

    assert "jane" not in mark
    if stream != "x{}y":  # an empty tag hashes the whole key: no other key can share its slot on purpose
        assert key_slot(mark.encode()) == key_slot(stream.encode())
