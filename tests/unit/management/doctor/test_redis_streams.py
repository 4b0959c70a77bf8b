"""Thresholds of the checks of Redis."""

import pytest

from conquiet.management.doctor import Severity
from conquiet.management.doctor.redis import CHECKS, RedisFacts, RedisLimits
from conquiet.management.doctor.redis_facts import _exhausted
from conquiet.management.models import GroupReport, StreamReport
from conquiet.redis_transport.replies import Pending


def found(info: dict[str, str], *streams: StreamReport, limits: RedisLimits | None = None) -> dict[str, Severity]:
    healthy = {"aof_enabled": "1", "redis_version": "7.2.0"}
    facts = RedisFacts(healthy | info, {}, (), streams, (), "", limits or RedisLimits())
    return {one.check: one.severity for check in CHECKS for one in check(facts)}


def stream(length: int, *, lag: int = 0, age_s: float | None = None) -> StreamReport:
    group = GroupReport("billing", lag, 0, "0-0", age_s, (), b"billing")
    return StreamReport("orders", length, "1-0", "3-0", None, 0, 0, (), (group,), b"orders")


@pytest.mark.parametrize(("version", "old"), [("6.1.9", True), ("6.2.0", False)])
def test_a_server_is_too_old_before_6_2(version: str, *, old: bool) -> None:
    assert ("redis.version" in found({"redis_version": version})) is old


@pytest.mark.parametrize(("used", "crowded"), [("90", False), ("91", True)])
def test_memory_is_crowded_above_ninety_percent(used: str, *, crowded: bool) -> None:
    assert ("redis.memory" in found({"maxmemory": "100", "used_memory": used})) is crowded


def test_growth_is_a_fault_above_its_limit_and_not_at_it() -> None:
    limits = RedisLimits(max_done=20)

    assert "redis.growth" not in found({}, stream(20), limits=limits)
    assert "redis.growth" in found({}, stream(21), limits=limits)


@pytest.mark.parametrize(("age_s", "severity"), [(600.0, Severity.WARNING), (601.0, Severity.ERROR)])
def test_old_work_without_a_consumer_is_an_error(age_s: float, severity: Severity) -> None:
    assert found({}, stream(3, lag=3, age_s=age_s))["redis.lag"] is severity


def test_an_entry_at_the_limit_of_deliveries_is_found() -> None:
    rows = [Pending("1-0", b"alice", 0, 9), Pending("2-0", b"alice", 0, 10)]

    assert list(_exhausted({("orders", "billing"): rows}, 10)) == [("orders", "billing", 1)]
