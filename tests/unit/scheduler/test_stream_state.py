"""The facts that a host keeps about one stream: when to plan which entry, and its backoff."""

from conquiet.scheduler.stream_state import StreamState

NOW = 1_800_000_000_000


def test_entries_are_due_at_their_time_and_until_rescheduled() -> None:
    state = StreamState(wake_at={"a": NOW, "b": NOW + 5_000})

    assert state.due(NOW) == ["a"]
    state.schedule("a", NOW + 9_000)
    assert (state.due(NOW), state.next_wake(NOW)) == ([], NOW + 5_000)
    state.schedule("b", None)
    state.schedule("a", None)
    assert state.next_wake(NOW) is None


def test_a_refused_stream_is_skipped_for_less_than_a_second() -> None:
    state = StreamState(wake_at={"a": NOW})

    for refusals in range(1, 20):
        state.back_off(NOW)
        wake = state.next_wake(NOW)
        assert state.refusals == refusals
        assert wake is not None
        assert NOW < wake < NOW + 1_000
        assert state.due(NOW) == []
        assert state.due(wake) == ["a"]


def test_a_clock_set_back_does_not_prolong_the_backoff() -> None:
    state = StreamState(wake_at={"a": 0})
    state.back_off(NOW)

    assert state.due(NOW - 3_600_000) == ["a"]


def test_an_accepted_command_ends_the_backoff() -> None:
    state = StreamState(wake_at={"a": NOW})
    state.back_off(NOW)

    state.reset_backoff()

    assert (state.refusals, state.due(NOW)) == (0, ["a"])
