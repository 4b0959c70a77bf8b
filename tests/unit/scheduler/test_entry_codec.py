"""The stored form of an entry: complete, readable by later releases, never guessed."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.scheduler.builders import an_entry

from conquiet.scheduler import entry_codec
from conquiet.scheduler.cron import Cron
from conquiet.scheduler.entries import Every, Once, When, from_ms

WHENS = st.one_of(
    st.sampled_from([Cron("30 2 * * *", "Europe/Berlin"), Cron("@hourly"), Cron("*/5 * * * * *")]),
    st.builds(
        lambda ms, anchor: Every(ms / 1_000, anchor=from_ms(anchor)),
        st.integers(100, 10**9),
        st.integers(0, 2 * 10**12),
    ),
    st.builds(lambda ms: Once(from_ms(ms)), st.integers(1, 4 * 10**12)),
)


@settings(deadline=None)
@given(
    when=WHENS,
    data=st.dictionaries(st.text(max_size=5), st.one_of(st.integers(-(2**53), 2**53), st.text(max_size=5), st.none())),
    policy=st.sampled_from(["skip", "one", "all"]),
    jitter_ms=st.integers(0, 3_600_000),
)
def test_an_entry_is_decoded_as_it_was_encoded(when: When, data: dict[str, Any], policy: str, jitter_ms: int) -> None:
    entry = an_entry(when=when, data=data, catch_up=policy, jitter_s=jitter_ms / 1_000)
    again = entry_codec.decode(entry_codec.encode(entry))

    assert entry_codec.revision(again) == entry_codec.revision(entry)
    assert again.when.next_after(10**12) == when.next_after(10**12)
    assert (again.data, again.catch_up, again.jitter_ms) == (entry.data, policy, jitter_ms)


def test_an_entry_of_the_first_release_stays_readable() -> None:
    stored = (
        b'{"v":1,"name":"nightly","event":"report.make","stream":"reports",'
        b'"when":{"cron":"30 2 * * *","tz":"Europe/Berlin"},"catch_up":"one","catch_up_limit":100,'
        b'"grace_ms":5000,"jitter_ms":0,"data":{"kind":"sales"},"added in a later release":true}'
    )
    assert entry_codec.decode(stored) == an_entry()


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"[]",
        b"{}",
        b'{"v":2}',
        b'{"v":1}',
        (
            b'{"v":1,"name":"n","event":"e","stream":"s","when":{"cron":"* *","tz":"UTC"},"data":{},"catch_up":"one",'
            b'"catch_up_limit":1,"grace_ms":0,"jitter_ms":0}'
        ),
        (
            b'{"v":1,"name":"n","event":"e","stream":"s","when":{"once_ms":1e300},"data":{},"catch_up":"one",'
            b'"catch_up_limit":1,"grace_ms":0,"jitter_ms":0}'
        ),
        (
            b'{"v":1,"name":"n","event":"e","stream":"s","when":7,"data":{},"catch_up":"one",'
            b'"catch_up_limit":1,"grace_ms":0,"jitter_ms":0}'
        ),
    ],
)
def test_an_entry_that_cannot_be_decoded_is_an_error(stored: bytes) -> None:
    with pytest.raises(entry_codec.EntryCodecError):
        entry_codec.decode(stored)


def test_digests_distinguish_new_times_from_other_changes() -> None:
    entry = an_entry()
    with_other_data = an_entry(data={"kind": "stock"})
    with_other_times = an_entry(when=Cron("30 3 * * *", "Europe/Berlin"))

    assert entry_codec.revision(entry) == entry_codec.revision(an_entry())
    assert entry_codec.revision(entry) != entry_codec.revision(with_other_data)
    assert entry_codec.times_digest(entry) == entry_codec.times_digest(with_other_data)
    assert entry_codec.times_digest(entry) != entry_codec.times_digest(with_other_times)
