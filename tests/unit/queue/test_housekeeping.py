"""How often a stream is visited, and what a failed visit does."""

import pytest

from conquiet.queue.backlog_sampler import BacklogSampler
from conquiet.queue.housekeeping import StreamHousekeeper
from conquiet.queue.stream_progress import StreamProgress
from conquiet.redis_transport.client import SyncClient
from conquiet.redis_transport.redis_url import client_from_url


def test_an_idle_stream_is_visited_less_often() -> None:
    state = StreamProgress(0.0, 0.0, BacklogSampler("orders", "token"))
    pauses = []
    for removed in (False, False, False, False, False, True, False):
        state.schedule_next(100.0, 0.5, removed=removed)
        pauses.append(state.next_at - 100.0)

    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0, 0.5, 1.0]


def test_a_cluster_of_which_no_node_answers_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    """The address for the log line is asked of the cluster, which fails once more: seen while a master was killed."""
    nowhere = client_from_url(SyncClient.from_url, "redis://127.0.0.1:1/0?cluster=true")
    housekeeper = StreamHousekeeper(nowhere, ["orders"])
    state = StreamProgress(0.0, 0.0, BacklogSampler("orders", "token"))

    housekeeper._visit("orders", state)

    assert state.failures == 1
    assert "Redis is unavailable; streams are neither read nor trimmed" in caplog.text
    state.outage.close()
    housekeeper.close()
