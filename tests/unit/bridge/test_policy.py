"""What the relay decides: which rows, in which order, and what becomes of refused ones."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.bridge.policy import (
    Letter,
    Outcome,
    Park,
    Retry,
    Seen,
    after_refusal,
    blocked_keys,
    in_order,
    plan,
    waves,
)
from conquiet.kernel.backoff import Backoff


def a_letter(seq: int, key: bytes | None = None, *, due: bool = True, attempts: int = 0) -> Letter:
    return Letter(seq, f"id-{seq}", key, b"{}", attempts, due=due)


def test_only_the_oldest_row_of_a_key_is_locked_and_the_others_may_follow_it() -> None:
    chosen = plan([Seen(1, b"a"), Seen(3, b"a"), Seen(4, b"b")], batch=10)

    assert chosen.lock == [1, 4]
    assert chosen.followers == {b"a": [3]}
    assert chosen.examined == 3


def test_the_oldest_row_of_a_key_is_the_one_written_first_not_the_one_due_first() -> None:
    """A delayed row comes later in the scan than one written after it."""
    assert plan([Seen(5, b"a"), Seen(2, b"a")], batch=10).lock == [2]


def test_a_full_batch_says_how_far_it_has_looked() -> None:
    """What lies behind must not be passed over when the scan goes on from here."""
    chosen = plan([Seen(1, b"b"), Seen(2, b"a"), Seen(3, b"a"), Seen(4, b"c")], batch=2)

    assert chosen.lock == [1, 2]
    assert chosen.followers == {}, "there is no room for a follower"
    assert chosen.examined == 3


@given(st.lists(st.binary(min_size=1, max_size=1), max_size=40), st.integers(min_value=1, max_value=20))
def test_a_plan_is_never_larger_than_the_batch_and_never_leaves_a_gap_in_a_key(keys: list[bytes], batch: int) -> None:
    seen = [Seen(seq, key) for seq, key in enumerate(keys)]

    chosen = plan(seen, batch=batch)

    taken = [*chosen.lock, *(seq for seqs in chosen.followers.values() for seq in seqs)]
    assert len(taken) == len(set(taken)) <= batch
    assert chosen.examined > 0 or not seen
    for key in set(keys):
        of_key = [row.seq for row in seen if row.key == key]
        mine = sorted(seq for seq in taken if seq in of_key)
        assert mine == of_key[: len(mine)]


def test_a_key_is_published_only_by_who_holds_its_oldest_row() -> None:
    letters = [a_letter(1, b"ours"), a_letter(2, b"theirs"), a_letter(3, b"ours"), a_letter(4)]

    assert [one.seq for one in in_order(letters, heads={1})] == [1, 3, 4]


def test_a_row_that_is_not_due_holds_back_what_follows_it() -> None:
    letters = [a_letter(1, b"a"), a_letter(2, b"a", due=False), a_letter(3, b"a")]

    assert [one.seq for one in in_order(letters, heads={1})] == [1]


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.booleans()), max_size=30), st.randoms())
def test_whatever_is_published_of_a_key_is_its_beginning(rows: list[tuple[bytes, bool]], rng: random.Random) -> None:
    letters = [a_letter(seq, key, due=due) for seq, (key, due) in enumerate(rows)]
    heads = {min((one.seq for one in letters if one.key == key), default=-1) for key in (b"a", b"c")}
    rng.shuffle(letters)

    chosen = in_order(letters, heads)

    assert [one.seq for one in chosen] == sorted(one.seq for one in chosen)
    for key in (b"a", b"b", b"c"):
        of_key = sorted(one.seq for one in letters if one.key == key)
        mine = [one.seq for one in chosen if one.key == key]
        assert mine == of_key[: len(mine)]
        assert key != b"b" or not mine


def test_waves_hold_each_key_once_and_keep_its_order() -> None:
    letters = [a_letter(1, b"a"), a_letter(2, b"a"), a_letter(3), a_letter(4, b"b"), a_letter(5, b"a"), a_letter(6)]

    assert [[one.seq for one in wave] for wave in waves(letters)] == [[1, 3, 4, 6], [2], [5]]


def test_a_key_is_blocked_by_any_letter_that_did_not_go_out() -> None:
    letters = [a_letter(1, b"a"), a_letter(2, b"b"), a_letter(3), a_letter(4, b"c")]
    outcomes = [Outcome.PUBLISHED, Outcome.REFUSED, Outcome.REFUSED, Outcome.HELD]

    assert blocked_keys(letters, outcomes) == {b"b", b"c"}


@pytest.mark.parametrize(
    ("attempts", "decision"),
    [(0, Retry(7, 1, 1.0)), (1, Retry(7, 2, 2.0)), (2, Park(7, 3)), (9, Park(7, 10))],
)
def test_a_refused_letter_waits_longer_each_time_and_is_parked_in_the_end(
    attempts: int, decision: Retry | Park
) -> None:
    backoff = Backoff(base_s=1.0, factor=2.0, jitter=0.0)

    assert after_refusal(a_letter(7, attempts=attempts), max_attempts=3, backoff=backoff) == decision


def test_a_letter_shows_no_payload() -> None:
    assert "secret" not in repr(Letter(1, "id", None, b'{"secret":1}'))
