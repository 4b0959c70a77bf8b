"""A multiple-ack settles everything below it: the window must never let one pass over an open delivery."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from conquiet.rabbit.ack_window import Acks, AckWindow


def test_a_run_at_the_low_end_is_one_multiple_ack() -> None:
    window = AckWindow()
    for tag in (1, 2, 3, 4):
        window.arrived([tag])
    for tag in (2, 1, 3):
        window.finished(tag)

    assert window.take() == Acks(3, 3, ())
    assert window.take() == Acks(None, 0, ())
    assert (window.open_count, len(window._finished)) == (1, 0)


def test_with_nothing_open_the_multiple_ack_covers_the_highest_whichever_finished_last() -> None:
    window = AckWindow()
    window.arrived([1, 2, 3])
    for tag in (3, 1, 2):
        window.finished(tag)

    assert window.take() == Acks(3, 3, ())


def test_what_lies_above_an_open_delivery_is_acknowledged_one_by_one() -> None:
    window = AckWindow()
    for tag in (1, 2, 3, 4):
        window.arrived([tag])
    for tag in (4, 1, 3):
        window.finished(tag)

    assert window.take() == Acks(1, 1, (3, 4))


def test_a_rejected_delivery_does_not_hold_up_acknowledgements() -> None:
    window = AckWindow()
    for tag in (1, 2, 3):
        window.arrived([tag])
    window.settled(1)
    window.finished(2)
    window.finished(3)

    assert window.take() == Acks(3, 2, ())


class Broker(RuleBasedStateMachine):
    """A model of the broker's side: it settles what an ack covers and complains about everything it must not cover."""

    def __init__(self) -> None:
        super().__init__()
        self.window = AckWindow()
        self.next_tag = 1
        self.running: set[int] = set()
        self.to_ack: set[int] = set()

    @rule(number=st.integers(1, 5))
    def deliver(self, number: int) -> None:
        for _ in range(number):
            self.window.arrived([self.next_tag])
            self.running.add(self.next_tag)
            self.next_tag += 1

    @rule(choice=st.integers(0, 1_000))
    def finish(self, choice: int) -> None:
        if self.running:
            tag = sorted(self.running)[choice % len(self.running)]
            self.running.discard(tag)
            self.to_ack.add(tag)
            self.window.finished(tag)

    @rule(choice=st.integers(0, 1_000))
    def reject(self, choice: int) -> None:
        if self.running:
            tag = sorted(self.running)[choice % len(self.running)]
            self.running.discard(tag)
            self.window.settled(tag)

    @rule()
    def flush(self) -> None:
        acks = self.window.take()

        covered = {tag for tag in self.running | self.to_ack if acks.up_to is not None and tag <= acks.up_to}
        covered |= set(acks.singles)
        assert not covered & self.running, "an open delivery was acknowledged"
        assert covered == self.to_ack, "a finished delivery was left out"
        assert acks.count == len(covered)
        self.to_ack.clear()

    @invariant()
    def counts_agree(self) -> None:
        assert self.window.open_count == len(self.running)
        assert len(self.window._finished) == len(self.to_ack)


TestAckWindow = Broker.TestCase
TestAckWindow.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


@settings(deadline=None)
@given(st.permutations(range(1, 30)))
def test_in_whatever_order_deliveries_finish_all_are_acknowledged_once(order: list[int]) -> None:
    window = AckWindow()
    for tag in range(1, 30):
        window.arrived([tag])

    settled: list[int] = []
    for tag in order:
        window.finished(tag)
        acks = window.take()
        settled += [*acks.singles, *([tag] if acks.up_to is not None else [])]

    assert sorted(settled) == list(range(1, 30))
