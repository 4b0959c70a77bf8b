import pytest
from prometheus_client import REGISTRY

from conquiet.rabbit.counters import Counters, Fate, Tally


@pytest.mark.spec("MW-008.3", "MW-008.4")
def test_nack_is_what_was_rejected_or_retried() -> None:
    count = Counters(requeued=2, dead_lettered=3, dropped=9, stale=9)

    assert count.nack == 5
    assert count.as_dict()["nack"] == 5


@pytest.mark.spec("MW-008.2")
def test_a_dropped_message_is_not_a_success() -> None:
    tally = Tally("q-dropped")
    tally.add(Fate.DROPPED)
    tally.add(Fate.ACK, 2)

    assert (tally.count.ack, tally.count.dropped, tally.count.nack) == (2, 1, 0)


@pytest.mark.spec("MW-008.5", "MW-008.4")
def test_every_consumer_begins_at_zero() -> None:
    Tally("q-zero").add(Fate.ACK, 5)

    assert Tally("q-zero").count == Counters()


def test_prometheus_sees_the_same_numbers() -> None:
    tally = Tally("q-prometheus")
    for fate in Fate:
        tally.add(fate, 3)
    tally.started(17)
    tally.connection("lost")

    for fate in Fate:
        labels = {"queue": "q-prometheus", "outcome": fate.value}
        assert REGISTRY.get_sample_value("conquiet_rabbit_messages_total", labels) == 3
    assert REGISTRY.get_sample_value("conquiet_rabbit_queued_at_start", {"queue": "q-prometheus"}) == 17
    labels = {"queue": "q-prometheus", "event": "lost"}
    assert REGISTRY.get_sample_value("conquiet_rabbit_connection_events_total", labels) == 1
