import pytest
from prometheus_client import REGISTRY

from conquiet.rabbit.counters import Counters, DeliveryOutcome, DeliveryStats


@pytest.mark.spec("MW-008.3", "MW-008.4")
def test_nack_is_what_was_rejected_or_retried() -> None:
    count = Counters(requeued=2, dead_lettered=3, dropped=9, stale=9)

    assert count.nack == 5
    assert count.as_dict()["nack"] == 5


@pytest.mark.spec("MW-008.2")
def test_a_dropped_message_is_not_a_success() -> None:
    stats = DeliveryStats("q-dropped")
    stats.add(DeliveryOutcome.DROPPED)
    stats.add(DeliveryOutcome.ACK, 2)

    assert (stats.count.ack, stats.count.dropped, stats.count.nack) == (2, 1, 0)


@pytest.mark.spec("MW-008.5", "MW-008.4")
def test_every_consumer_begins_at_zero() -> None:
    DeliveryStats("q-zero").add(DeliveryOutcome.ACK, 5)

    assert DeliveryStats("q-zero").count == Counters()


def test_prometheus_sees_the_same_numbers() -> None:
    stats = DeliveryStats("q-prometheus")
    for outcome in DeliveryOutcome:
        stats.add(outcome, 3)
    stats.started(17)
    stats.connection("lost")

    for outcome in DeliveryOutcome:
        labels = {"queue": "q-prometheus", "outcome": outcome.value}
        assert REGISTRY.get_sample_value("conquiet_rabbit_messages_total", labels) == 3
    assert REGISTRY.get_sample_value("conquiet_rabbit_queued_at_start", {"queue": "q-prometheus"}) == 17
    labels = {"queue": "q-prometheus", "event": "lost"}
    assert REGISTRY.get_sample_value("conquiet_rabbit_connection_events_total", labels) == 1
