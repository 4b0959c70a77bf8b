"""Observations in batches."""

import math
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram

from conquiet.metrics.registry import RUNTIME_HANDLING_SECONDS, RUNTIME_IN_FLIGHT, RUNTIME_WAIT_SECONDS
from conquiet.redis_transport.worker_reports import BUCKETS_S
from conquiet.runtime.metrics import StreamStats, observe_many


def test_many_observations_at_once_equal_as_many_single_ones() -> None:
    values = [0.0, 0.004, 0.005, 0.0051, 0.3, 9.99, 10.0, 10.1, 1e6]
    single, many = (Histogram("h", "h", registry=CollectorRegistry()) for _ in range(2))
    for value in values:
        single.observe(value)
    totals = [0] * (len(BUCKETS_S) + 1)
    observe_many(many, values, totals)

    def numbers(histogram: Histogram) -> list[tuple[str, Any, float]]:
        samples = next(iter(histogram.collect())).samples
        return [(s.name, s.labels, s.value) for s in samples if not s.name.endswith("_created")]

    assert numbers(single) == numbers(many)
    assert totals == [3, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 2]


@pytest.mark.parametrize("metric", [RUNTIME_HANDLING_SECONDS, RUNTIME_WAIT_SECONDS])
def test_the_history_has_the_buckets_of_the_histograms(metric: Histogram) -> None:
    """A value is sorted once, for both."""
    assert metric.labels("s")._upper_bounds == [*BUCKETS_S, math.inf]


def test_the_in_flight_gauge_is_the_sum_over_engines() -> None:
    """Several engines of a process may read one stream, each for a different group."""
    one, other = StreamStats("gauged"), StreamStats("gauged")
    gauge = RUNTIME_IN_FLIGHT.labels("gauged")
    seen = []
    for stats, in_flight in [(one, 3), (other, 2), (one, 5), (one, 0), (other, 0)]:
        stats.flush(in_flight)
        seen.append(gauge._value.get())

    assert seen == [3, 5, 7, 2, 0]
