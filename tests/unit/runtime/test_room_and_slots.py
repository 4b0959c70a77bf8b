"""What several readers of one pool may fetch, and who has which slot of a cluster."""

from hypothesis import given
from hypothesis import strategies as st

from conquiet.runtime.cluster import owners
from conquiet.runtime.room import Room


def test_a_lone_reader_has_all_the_room() -> None:
    room = Room(10, 5, 1)

    assert room.for_reading("a", 0, 5) == 15
    assert room.for_reading("a", 0, 0) == 10
    assert room.for_reading("a", 12, 5) == 3
    assert room.for_waiting("a", 12) == 3
    assert room.for_waiting("a", 0) == 15
    assert room.may_wait


def test_a_waiting_read_sets_little_aside_and_keeps_no_slot_from_who_has_work() -> None:
    room = Room(10, 6, 3)
    for reader in ("b", "c"):
        room.set_aside(reader, room.for_waiting(reader, 0), waiting=True)

    assert room.for_reading("a", 0, 0) == 10
    assert room.for_reading("a", 0, 6) == 12
    assert Room(10, 0, 2).for_waiting("a", 0) == 1
    assert not Room(1, 5, 3).is_crowded


def test_a_slot_that_another_reader_fetches_for_is_not_filled_from_a_store_that_is_to_stay_empty() -> None:
    room = Room(10, 6, 2)
    room.set_aside("b", 4, waiting=False)

    assert room.for_reading("a", 3, 0) == 3


def test_who_has_waited_longest_gets_the_only_room() -> None:
    room = Room(1, 0, 3)
    room.set_aside("a", room.for_reading("a", 0, 0), waiting=False)
    assert (room.for_reading("b", 0, 0), room.for_reading("c", 0, 0)) == (0, 0)
    room.release("a")

    assert room.for_reading("a", 0, 0) == 0
    assert room.for_reading("c", 0, 0) == 0
    assert room.for_reading("b", 0, 0) == 1


def test_who_left_is_not_waited_for() -> None:
    room = Room(1, 0, 2)
    room.set_aside("a", 1, waiting=False)
    assert room.for_reading("b", 0, 0) == 0
    room.leave("b")
    room.release("a")

    assert room.for_reading("a", 0, 0) == 1


def test_readers_wait_in_turns_only_after_a_round_in_which_nobody_found_anything() -> None:
    room = Room(1, 0, 2)
    may_wait = [room.may_wait]
    for found in (0, 0, 1, 0):
        room.note(found)
        may_wait.append(room.may_wait)

    assert may_wait == [False, False, True, False, False]


@given(
    slots=st.integers(1, 20),
    store=st.integers(0, 20),
    steps=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["read", "wait", "come", "finish"])), max_size=80),
)
def test_never_more_is_in_hand_or_on_its_way_than_slots_and_store(
    slots: int, store: int, steps: list[tuple[int, str]]
) -> None:
    room = Room(slots, store, 5)
    in_hand = 0
    on_the_way: dict[int, int] = {}
    for reader, step in steps:
        if step == "come":
            in_hand += on_the_way.pop(reader, 0)
            room.release(reader)
        elif step == "finish":
            in_hand = max(0, in_hand - 1)
        elif reader not in on_the_way:
            share = (
                room.for_reading(reader, in_hand, store // 2) if step == "read" else room.for_waiting(reader, in_hand)
            )
            if share > 0:
                room.set_aside(reader, share, waiting=step == "wait")
                on_the_way[reader] = share
        assert in_hand + sum(on_the_way.values()) <= slots + store


def test_who_has_a_slot_is_read_from_the_reply() -> None:
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
