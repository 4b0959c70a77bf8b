"""When a worker process is replaced."""

import os
from pathlib import Path

import pytest

from conquiet.cli.worker.heartbeat_file import HeartbeatFile
from conquiet.cli.worker.recycling import RecycleLimits, draw_share, rss_bytes

LIMITS = RecycleLimits(max_messages=100, max_rss_mb=50, max_age_s=60)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"handled": 99, "rss_bytes": 49 * 2**20, "age_s": 59.0}, ""),
        ({"handled": 100, "rss_bytes": 0, "age_s": 0.0}, "has handled 100 messages"),
        ({"handled": 0, "rss_bytes": 50 * 2**20, "age_s": 0.0}, "uses 50 MiB"),
        ({"handled": 0, "rss_bytes": 0, "age_s": 60.0}, "is 60 s old"),
        ({"handled": 90, "rss_bytes": 0, "age_s": 0.0, "share": 0.9}, "has handled 90 messages"),
    ],
)
def test_each_limit_is_a_reason(facts: dict[str, float], reason: str) -> None:
    assert LIMITS.reason(**facts) == reason  # type: ignore[arg-type]
    assert RecycleLimits().reason(**facts) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first_mb", "age_s", "reason"), [(49, 1.0, "uses 51 MiB"), (50, 59.0, ""), (50, 60.0, "uses 51 MiB")]
)
def test_a_limit_below_what_a_fresh_process_needs_acts_once_a_minute(first_mb: int, age_s: float, reason: str) -> None:
    """Otherwise each process would be replaced as soon as it is ready, and the worker would only restart."""
    limits = RecycleLimits(max_rss_mb=50)
    found = limits.reason(handled=0, rss_bytes=51 * 2**20, age_s=age_s, first_rss_bytes=first_mb * 2**20)

    assert found == reason
    assert limits.is_below_start(first_mb * 2**20) is (first_mb == 50)


def test_limits_are_spread_by_a_tenth_at_most() -> None:
    assert all(0.9 <= draw_share() <= 1.0 for _ in range(100))
    assert LIMITS.is_set
    assert not RecycleLimits().is_set


def test_the_memory_of_a_process_is_known() -> None:
    assert rss_bytes(os.getpid()) > 2**20
    assert rss_bytes(2**22 + 1) == 0


def test_a_count_belongs_to_the_process_that_wrote_it(tmp_path: Path) -> None:
    file = HeartbeatFile.create(tmp_path, 2)
    file.write(1, pid=7, ready=True, handled=12)

    assert (file.handled(1, 7), file.handled(1, 8), file.handled(0, 7)) == (12, 0, 0)
    file.close()
