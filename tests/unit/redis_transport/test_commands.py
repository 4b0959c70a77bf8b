"""Commands as bytes."""

from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.packed_commands import unpack

from conquiet.redis_transport.commands import create_group, pack


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


def test_a_group_begins_with_the_first_entry_of_its_stream() -> None:
    assert unpack(create_group("orders", "billing")) == [b"XGROUP CREATE orders billing 0-0 MKSTREAM".split()]
