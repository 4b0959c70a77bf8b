"""Decisions of the relay: the rows, their order, and the treatment of refused rows."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.core.backoff import Backoff
from conquiet.transactional.relay_decisions import (
    Candidate,
    OutboxMessage,
    Park,
    PublishOutcome,
    RetryRow,
    after_refusal,
    batches_without_key_repeats,
    blocked_keys,
    in_order,
    plan,
)


def a_message(seq: int, key: bytes | None = None, *, due: bool = True, attempts: int = 0) -> OutboxMessage:
    return OutboxMessage(seq, f"id-{seq}", key, b"{}", attempts, due=due)


def test_only_the_oldest_row_of_a_key_is_locked() -> None:
    chosen = plan([Candidate(1, b"a"), Candidate(3, b"a"), Candidate(4, b"b")], batch=10)

    assert chosen.lock == [1, 4]
    assert chosen.followers == {b"a": [3]}
    assert chosen.examined == 3


def test_the_oldest_row_of_a_key_was_written_first() -> None:
    """A delayed row comes later in the scan than one written after it."""
    assert plan([Candidate(5, b"a"), Candidate(2, b"a")], batch=10).lock == [2]


def test_a_full_batch_reports_how_many_rows_it_examined() -> None:
    """The scan continues from here, so rows behind must not be skipped."""
    chosen = plan([Candidate(1, b"b"), Candidate(2, b"a"), Candidate(3, b"a"), Candidate(4, b"c")], batch=2)

    assert chosen.lock == [1, 2]
    assert chosen.followers == {}, "the batch is full"
    assert chosen.examined == 3


@given(st.lists(st.binary(min_size=1, max_size=1), max_size=40), st.integers(min_value=1, max_value=20))
def test_a_plan_fits_the_batch_without_a_gap_in_a_key(keys: list[bytes], batch: int) -> None:
    seen = [Candidate(seq, key) for seq, key in enumerate(keys)]

    chosen = plan(seen, batch=batch)

    taken = [*chosen.lock, *(seq for seqs in chosen.followers.values() for seq in seqs)]
    assert len(taken) == len(set(taken)) <= batch
    assert chosen.examined > 0 or not seen
    for key in set(keys):
        of_key = [row.seq for row in seen if row.key == key]
        mine = sorted(seq for seq in taken if seq in of_key)
        assert mine == of_key[: len(mine)]


def test_a_key_is_published_only_by_who_holds_its_oldest_row() -> None:
    messages = [a_message(1, b"ours"), a_message(2, b"theirs"), a_message(3, b"ours"), a_message(4)]

    assert [one.seq for one in in_order(messages, heads={1})] == [1, 3, 4]


def test_a_row_that_is_not_due_holds_back_what_follows_it() -> None:
    messages = [a_message(1, b"a"), a_message(2, b"a", due=False), a_message(3, b"a")]

    assert [one.seq for one in in_order(messages, heads={1})] == [1]


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.booleans()), max_size=30), st.randoms())
def test_published_messages_of_a_key_are_its_first_ones(rows: list[tuple[bytes, bool]], rng: random.Random) -> None:
    messages = [a_message(seq, key, due=due) for seq, (key, due) in enumerate(rows)]
    heads = {min((one.seq for one in messages if one.key == key), default=-1) for key in (b"a", b"c")}
    rng.shuffle(messages)

    chosen = in_order(messages, heads)

    assert [one.seq for one in chosen] == sorted(one.seq for one in chosen)
    for key in (b"a", b"b", b"c"):
        of_key = sorted(one.seq for one in messages if one.key == key)
        mine = [one.seq for one in chosen if one.key == key]
        assert mine == of_key[: len(mine)]
        assert key != b"b" or not mine


def test_parts_hold_each_key_once_and_keep_its_order() -> None:
    messages = [
        a_message(1, b"a"),
        a_message(2, b"a"),
        a_message(3),
        a_message(4, b"b"),
        a_message(5, b"a"),
        a_message(6),
    ]

    assert [[one.seq for one in part] for part in batches_without_key_repeats(messages)] == [[1, 3, 4, 6], [2], [5]]


def test_a_key_is_blocked_by_any_message_that_did_not_go_out() -> None:
    messages = [a_message(1, b"a"), a_message(2, b"b"), a_message(3), a_message(4, b"c")]
    outcomes = [PublishOutcome.PUBLISHED, PublishOutcome.REFUSED, PublishOutcome.REFUSED, PublishOutcome.DEFERRED]

    assert blocked_keys(messages, outcomes) == {b"b", b"c"}


@pytest.mark.parametrize(
    ("attempts", "decision"),
    [(0, RetryRow(7, 1, 1.0)), (1, RetryRow(7, 2, 2.0)), (2, Park(7, 3)), (9, Park(7, 10))],
)
def test_a_refused_message_waits_longer_each_time_until_it_is_parked(attempts: int, decision: RetryRow | Park) -> None:
    backoff = Backoff(base_s=1.0, factor=2.0, jitter=0.0)

    assert after_refusal(a_message(7, attempts=attempts), max_attempts=3, backoff=backoff) == decision


def test_a_message_shows_no_payload() -> None:
    assert "secret" not in repr(OutboxMessage(1, "id", None, b'{"secret":1}'))


def test_the_rest_of_a_batch_goes_to_the_oldest_followers() -> None:
    """With any key scanned first: a busy key must not delay the older rows of another key."""
    seen = [Candidate(seq, key) for seq, key in [(1, b"a"), (10, b"a"), (11, b"a"), (2, b"b"), (3, b"b"), (4, b"b")]]

    chosen = plan(seen, batch=4)

    assert chosen.lock == [1, 2]
    assert chosen.followers == {b"b": [3, 4]}
