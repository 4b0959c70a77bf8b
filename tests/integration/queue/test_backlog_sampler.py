"""One host at a time sets the gauges of a stream."""

import math
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY
from redis import Redis

from conquiet.queue import StreamHousekeeper, housekeeping
from conquiet.queue.backlog_sampler import BacklogSampler, sampling_key
from conquiet.testing import wait_until


@pytest.fixture
def raw(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def stream(raw: Redis, key_prefix: str) -> str:
    name = f"{key_prefix}orders"
    for group in ("fast", "slow"):
        raw.xgroup_create(name, group, "0-0", mkstream=True)
    return name


def gauge(name: str, stream: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"conquiet_stream_{name}", {"stream": stream, **labels})


def sampled(raw: Redis, stream: str, token: str = "me") -> BacklogSampler:
    sampler = BacklogSampler(stream, token)
    sampler.next_at = 0.0
    sampler.sample(raw)
    return sampler


def test_a_sample_shows_every_group_delayed_and_dead(raw: Redis, stream: str) -> None:
    seconds, _ = raw.time()
    for number in range(5):
        raw.xadd(stream, {"data": "{}"}, id=f"{(seconds - 60) * 1000 + number}-0")
    raw.xreadgroup("fast", "alice", {stream: ">"}, count=3)
    raw.zadd(f"{{{stream}}}:delayed", {"a": 1, "b": 2})
    raw.xadd(f"{{{stream}}}:dead", {"data": "{}"})

    sampled(raw, stream)

    assert [gauge(name, stream) for name in ("length", "delayed", "dead_letters")] == [5, 2, 1]
    assert [gauge("lag", stream, group=group) for group in ("fast", "slow")] == [2, 5]
    assert [gauge("pending", stream, group=group) for group in ("fast", "slow")] == [3, 0]
    age_s = gauge("oldest_waiting_seconds", stream, group="slow")
    assert age_s is not None
    assert 59 <= age_s < 300


def test_a_host_without_the_lease_reports_nothing(raw: Redis, stream: str) -> None:
    first = sampled(raw, stream, "host-a")
    raw.delete(sampling_key(stream))
    second = sampled(raw, stream, "host-b")
    first.next_at = 0.0
    first.sample(raw)

    assert (first.is_owner, second.is_owner) == (False, True)
    assert math.isnan(gauge("lag", stream, group="fast") or 0.0)
    assert math.isnan(gauge("length", stream) or 0.0)


def test_a_group_that_is_destroyed_leaves_no_number(raw: Redis, stream: str) -> None:
    sampler = sampled(raw, stream)
    raw.xgroup_destroy(stream, "slow")
    sampler.next_at = 0.0
    sampler.sample(raw)

    assert math.isnan(gauge("pending", stream, group="slow") or 0.0)
    assert gauge("pending", stream, group="fast") == 0


def test_a_sample_changes_nothing_and_a_missing_stream_is_empty(raw: Redis, key_prefix: str) -> None:
    missing = f"{key_prefix}missing"

    sampled(raw, missing)

    assert gauge("length", missing) == 0
    assert not raw.exists(missing)


def test_housekeeping_samples_and_releases_its_lease(raw: Redis, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "SAMPLING_S", 0.05)
    raw.xadd(stream, {"data": "{}"})

    with StreamHousekeeper(raw, [stream], retention=None):
        wait_until(lambda: gauge("length", stream) == 1)
        assert raw.exists(sampling_key(stream))

    assert not raw.exists(sampling_key(stream))
    assert math.isnan(gauge("length", stream) or 0.0)
