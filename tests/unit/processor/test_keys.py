"""Every key that belongs to a stream lives in the stream's cluster slot."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from conquiet.errors import ConfigurationError
from conquiet.processor.keys import keys_of

words = st.text("ab:{}", min_size=1, max_size=8)


@given(words)
def test_all_keys_share_the_slot_of_their_stream(stream: str) -> None:
    """Otherwise the name of the stream is refused."""
    try:
        keys = keys_of(stream)
    except ConfigurationError:
        return

    every = [*dataclasses.astuple(keys)[:-1], keys.emitted("x}"), keys.rate("e{"), keys.job("1"), keys.jobs("dead")]
    every += [keys.debounce("e", "n"), keys.parked_event("e")]
    assert {key_slot(key.encode()) for key in every} == {key_slot(stream.encode())}
    assert len(set(every)) == len(every)


def test_the_names_are_as_documented() -> None:
    assert keys_of("orders").delayed == "{orders}:delayed"
    assert keys_of("shop:{7}:orders").dead == "shop:{7}:orders:dead"


@pytest.mark.parametrize("stream", ["a{}b", "a}", "{a", ""])
def test_a_name_whose_slot_nothing_can_share_is_refused(stream: str) -> None:
    with pytest.raises(ConfigurationError):
        keys_of(stream)


@given(
    st.text(":ab1", min_size=1), st.text(":ab1", min_size=1), st.text(":ab1", min_size=1), st.text(":ab1", min_size=1)
)
def test_bursts_of_different_events_have_different_keys(event: str, name: str, other: str, other_name: str) -> None:
    keys = keys_of("orders")

    assert keys.debounce("user", "updated:7") != keys.debounce("user:updated", "7")
    same = (event, name) == (other, other_name)
    assert (keys.debounce(event, name) == keys.debounce(other, other_name)) is same
