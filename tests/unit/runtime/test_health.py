"""When an engine is ready."""

from typing import Any

import pytest

from conquiet.core.lifecycle import Status
from conquiet.runtime.health import EngineHealth


@pytest.mark.parametrize(
    ("changed", "ready"),
    [
        ({}, True), ({"connected": False}, False), ({"lease_alive": False}, False),
        ({"status": Status.STOPPING}, False), ({"progress_age_s": 60.0}, False),
        ({"progress_age_s": 60.0, "active": 4}, True),
    ],
)  # fmt: skip
def test_ready_means_really_consuming(changed: dict[str, Any], ready: bool) -> None:  # noqa: FBT001
    facts: dict[str, Any] = {
        "status": Status.RUNNING, "connected": True, "progress_age_s": 0.1, "active": 1, "in_flight": 1,
        "unacknowledged": 0, "lease_alive": True, "lag": {}, "streams": {}, "reconnects": 0, "concurrency": 4,
        "progress_timeout_s": 4.0,
    }  # fmt: skip
    assert EngineHealth(**(facts | changed)).ready is ready
