"""The interval of passes over a stream, and the effect of a failed pass."""

from typing import Any

import pytest

from conquiet.errors import ConfigurationError
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


def idle_state() -> StreamProgress:
    state = StreamProgress(0.0, 0.0, BacklogSampler("orders", "token"))
    for _ in range(5):
        state.schedule_next(100.0, 0.5, removed=False)
    return state


def test_a_stream_with_work_to_do_is_visited_every_second() -> None:
    """A group of another program may do it at any moment, without notice."""
    state = idle_state()
    pauses = []
    for undone in (7, 7, 7, 0, 0, 0):
        state.schedule_next(100.0, 0.5, removed=False, undone=undone)
        pauses.append(state.next_at - 100.0)

    assert pauses == [1.0, 1.0, 1.0, 1.0, 2.0, 4.0]


def test_traffic_after_a_quiet_time_makes_a_pass_due() -> None:
    state = idle_state()
    assert not state.is_due(101.0)

    state.observe_reads(1)

    assert state.is_due(101.0)
    assert state.begin_pass()
    state.schedule_next(101.0, 0.5, removed=False)
    assert state.next_at == 102.0
    state.observe_reads(1)
    assert not state.is_due(101.5)


def test_traffic_disturbs_no_holder_that_passes_often() -> None:
    found = []
    for lease_s in (4.0, 4.1):
        state = StreamProgress(0.0, 0.0, BacklogSampler("orders", "token"))
        state.schedule_while_held(100.0, lease_s, 10, 0.5)
        state.observe_reads(1)
        found.append(state.is_due(100.1))

    assert found == [False, True]


def test_traffic_makes_no_failing_pass_more_frequent() -> None:
    state = idle_state()
    state.schedule_after_failure(100.0, 60.0)

    state.observe_reads(1)

    assert not state.is_due(101.0)


def test_a_quiet_stream_is_asked_for_traffic_every_interval() -> None:
    client = client_from_url(SyncClient.from_url, "redis://127.0.0.1:1/0")
    reads = StreamHousekeeper(client, ["orders"], messages_read=lambda _: 0)
    other = StreamHousekeeper(client, ["orders"])
    for one in (reads, other):
        one._states["orders"] = state = idle_state()
        state.sampler.next_at = state.next_at

    assert reads._pause_s(101.0) == 0.5
    assert other._pause_s(101.0) == 7.0
    for one in (reads, other):
        one.close()


def test_a_cluster_of_which_no_node_answers_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    """The cluster is queried for the address of the log line and fails again: seen while a master was killed."""
    nowhere = client_from_url(SyncClient.from_url, "redis://127.0.0.1:1/0?cluster=true")
    housekeeper = StreamHousekeeper(nowhere, ["orders"])
    state = StreamProgress(0.0, 0.0, BacklogSampler("orders", "token"))

    housekeeper._visit("orders", state)

    assert state.failures == 1
    assert "Redis is unavailable; streams are neither read nor trimmed" in caplog.text
    state.outage.close()
    housekeeper.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"streams": "orders"},
        {"streams": []},
        {"streams": [b"orders"]},
        {"group": ""},
        {"retention": 60},
        {"messages_read": 5},
    ],
    ids=str,
)
def test_arguments_that_cannot_work_are_refused_at_once(wrong: dict[str, Any]) -> None:
    """Otherwise the thread would log the mistake at each pass, and nothing would be removed."""
    options = {"streams": ["orders"], **wrong}

    with pytest.raises(ConfigurationError):
        StreamHousekeeper(client_from_url(SyncClient.from_url, "redis://127.0.0.1:1/0"), **options)
