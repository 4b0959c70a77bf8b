"""Dashboards without any server: a page connects on its first query, and the servers are unavailable."""

from collections.abc import Callable
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient

from conquiet.dashboard import Dashboard, DashboardSettings, dashboard
from conquiet.dashboard.server import Listener, standalone

NOWHERE = "redis://127.0.0.1:1"

Client = Callable[..., AsyncClient]


@pytest.fixture
def client_of() -> Client:
    """``client_of(app, base_url)``: a browser without a screen; cookies are kept, redirects are not followed."""

    def build(app: Any, base_url: str = "http://127.0.0.1:8321") -> AsyncClient:
        return AsyncClient(transport=ASGITransport(app), base_url=base_url)

    return build


@pytest.fixture
def make() -> Callable[..., Dashboard]:
    """``make(authorize=…)``: a dashboard with unavailable servers."""

    def build(authorize: Any = None, **settings: Any) -> Dashboard:
        shown = {
            "redis_url": NOWHERE,
            "db_url": "sqlite:////nowhere/x.db",
            "rabbit_url": "amqp://127.0.0.1:1",
        } | settings
        return dashboard(DashboardSettings(**shown), authorize=authorize)

    return build


@pytest.fixture
def token() -> str:
    return "a token of 24 characters"


@pytest.fixture
def with_token(token: str) -> Dashboard:
    return standalone(Listener(token=token), redis_url=NOWHERE)
