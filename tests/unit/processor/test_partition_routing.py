"""The partition that an emitter sends a message to."""

from conquiet.processor.partition_routing import PartitionRouter
from conquiet.processor.partitions import Layout, partition_of

GROWING = Layout(8, previous=2)


def a_key_that_moves() -> tuple[str, int, int]:
    """Return a key with its partition before and after the growth from 2 to 8."""
    for number in range(100):
        key = f"customer-{number}"
        before, after = partition_of(key, 2), partition_of(key, 8)
        if before != after:
            return key, before, after
    raise AssertionError("no key moves")


def test_messages_without_key_and_id_are_spread_evenly() -> None:
    router = PartitionRouter()

    chosen = [router.choose(None, None, None, Layout(4)) for _ in range(8)]

    assert sorted(chosen) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_message_with_an_id_has_one_partition() -> None:
    """A second message with the same id must meet the first one to be recognised as its duplicate."""
    chosen = {PartitionRouter().choose(None, "order-7", None, Layout(16)) for _ in range(5)}

    assert chosen == {partition_of("order-7", 16)}


def test_a_key_goes_to_its_earlier_partition_first_during_a_growth() -> None:
    """Messages of the key may still wait there, and its order must hold."""
    key, before, after = a_key_that_moves()
    router = PartitionRouter()

    assert router.choose(key, "id", None, GROWING) == before
    assert router.choose(key, "id", before, GROWING) == after


def test_a_key_that_has_moved_goes_to_its_new_partition_only() -> None:
    key, before, after = a_key_that_moves()
    router = PartitionRouter()
    router.note_sent_on(key, before, GROWING)

    assert router.choose(key, None, None, GROWING) == after
    assert PartitionRouter().choose(key, None, None, GROWING) == before


def layout_of(router: PartitionRouter) -> Layout | None:
    return router.layout


def test_the_layout_is_read_again_after_a_key_was_sent_on() -> None:
    router = PartitionRouter()
    router.layout = GROWING
    assert layout_of(router) == GROWING

    router.note_sent_on("a", 1, GROWING)

    assert layout_of(router) is None
