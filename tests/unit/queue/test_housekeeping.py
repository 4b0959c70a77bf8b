"""How often a stream is visited."""

from conquiet.queue.backlog_sampler import BacklogSampler
from conquiet.queue.housekeeping import _StreamState


def test_an_idle_stream_is_visited_less_often() -> None:
    state = _StreamState(0.0, 0.0, BacklogSampler("orders", "token"))
    pauses = []
    for removed in (False, False, False, True, False):
        state.schedule_next(100.0, 0.5, removed=removed)
        pauses.append(state.next_at - 100.0)

    assert pauses == [1.0, 2.0, 2.0, 0.5, 1.0]
