"""Settings of a dashboard are refused when it is built."""

from typing import Any

import pytest

from conquiet.dashboard import EVERYTHING, Access, DashboardSettings, dashboard
from conquiet.dashboard.server import Listener, standalone
from conquiet.errors import ConfigurationError

NOWHERE = "redis://127.0.0.1:1"


@pytest.mark.parametrize("settings", [{"inbox": "in;box"}, {"outbox": ""}])
def test_a_name_that_is_no_table_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(settings))} must be 'table' or"):
        DashboardSettings(redis_url=NOWHERE, **settings)


def test_payloads_that_no_visitor_may_see_are_not_revealed_silently() -> None:
    settings = DashboardSettings(redis_url=NOWHERE, reveal=True)

    with pytest.raises(ConfigurationError, match="reveal has no effect"):
        dashboard(settings)
    with pytest.raises(ConfigurationError, match="CONQUIET_DASHBOARD_TOKEN"):
        standalone(Listener(), redis_url=NOWHERE, reveal=True)
    dashboard(settings, authorize=lambda _: Access("ann", EVERYTHING))
    standalone(Listener(token="a token of 24 characters"), redis_url=NOWHERE, reveal=True)
