"""Checks of Redis as pure functions."""

import pytest

from conquiet.management.doctor import Severity
from conquiet.management.doctor.redis import CHECKS as REDIS_CHECKS
from conquiet.management.doctor.redis import RedisFacts
from conquiet.management.models import GroupReport, StreamReport


@pytest.mark.parametrize(
    ("info", "client", "check"),
    [
        ({"redis_version": "6.0.16"}, "8.1.0", "redis.version"),
        ({"redis_version": "7.2.0"}, "5.0.0", "redis.client"),
        ({"redis_version": "7.2.0", "maxmemory": "100", "used_memory": "95"}, "8.1.0", "redis.memory"),
    ],
)
def test_old_versions_and_a_full_redis_are_found(info: dict[str, str], client: str, check: str) -> None:
    facts = RedisFacts({"aof_enabled": "1"} | info, {}, (), (), (), client)
    found = {finding.check for one in REDIS_CHECKS for finding in one(facts) if finding.severity is not Severity.NOTE}

    assert found == {check}


def test_an_unknown_lag_counts_as_work_to_do() -> None:
    """Redis 6.2 counts none; what could not be counted either is still no zero."""
    group = GroupReport("billing", None, 0, "0-0", 5.0, (), b"billing")
    stream = StreamReport("orders", 3, "1-0", "3-0", None, 0, 0, (), (group,), b"orders")
    facts = RedisFacts({"aof_enabled": "1", "redis_version": "6.2.0"}, {}, (), (stream,), (), "")

    (finding,) = [finding for one in REDIS_CHECKS for finding in one(facts)]

    assert finding.what == "group 'billing' of 'orders' has an unknown number of entries to do and no live consumer"
