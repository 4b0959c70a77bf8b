"""Checks of every request, proved for every route of the application instead of a list."""

import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import AsyncClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from conquiet.dashboard import EVERYTHING, Access, Dashboard
from conquiet.dashboard.security import SAFE_METHODS
from conquiet.dashboard.server import Listener, standalone
from conquiet.errors import ConfigurationError

Make = Callable[..., Dashboard]
Client = Callable[..., AsyncClient]


def changing_routes(app: Dashboard) -> list[tuple[str, str]]:
    return [
        (method, route.path) for route in app.routes for method in (route.methods or ()) if method not in SAFE_METHODS
    ]


def all_rights(_request: Request) -> Access:
    return Access("ann", EVERYTHING)


async def test_every_changing_route_answers_403_in_read_only_mode(make: Make, client_of: Client) -> None:
    app = make()
    client = client_of(app)

    routes = changing_routes(app)
    answers = [await client.request(*one, data={"do": "replay", "stream": "orders"}) for one in routes]
    assert len(routes) >= 8
    assert {answer.status_code for answer in answers} == {403}
    # A form's token is missing too. It is not that which refuses.
    assert all("read-only for you" in answer.text for answer in answers)


async def test_a_method_without_a_route_is_refused_too(make: Make, client_of: Client) -> None:
    client = client_of(make())

    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert (await client.request(method, "/no/such/path")).status_code == 403


async def test_every_changing_route_is_read_only_until_log_in(with_token: Dashboard, client_of: Client) -> None:
    client = client_of(with_token)

    routes = [one for one in changing_routes(with_token) if one != ("POST", "/login")]
    assert {(await client.request(*one, data={"do": "replay"})).status_code for one in routes} == {403}


async def test_a_cross_origin_post_is_refused(make: Make, client_of: Client) -> None:
    app = make(authorize=all_rights)
    client = client_of(app)

    foreign: list[dict[str, str]] = [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:9999"},
    ]
    for headers in foreign:
        for method, path in changing_routes(app):
            answer = await client.request(method, path, headers=headers, data={"do": "replay"})
            assert answer.status_code == 403
            assert "does not come from a page" in answer.text


async def test_a_form_without_its_token_is_refused(make: Make, client_of: Client) -> None:
    app = make(authorize=all_rights)
    client = client_of(app)

    for method, path in changing_routes(app):
        answer = await client.request(method, path, data={"do": "replay", "stream": "orders", "csrf": "guess"})
        assert answer.status_code == 403
        assert "expired" in answer.text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8321", "127.0.0.1.evil.example", ""])
async def test_a_foreign_host_header_is_refused(make: Make, client_of: Client, host: str) -> None:
    answer = await client_of(make()).get("/", headers={"host": host})

    assert answer.status_code == 421


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:8321", "LOCALHOST:80"])
async def test_loopback_names_are_accepted(make: Make, client_of: Client, host: str) -> None:
    assert (await client_of(make()).get("/login", headers={"host": host})).status_code == 404


async def test_every_response_carries_the_protecting_headers(make: Make, client_of: Client) -> None:
    client = client_of(make())

    for answer in (
        await client.get("/"),
        await client.get("/static/dashboard.js"),
        await client.get("/nothing"),
        await client.post("/x"),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"


async def test_without_access_nothing_is_shown(make: Make, client_of: Client) -> None:
    client = client_of(make(authorize=lambda _: None))

    assert (await client.get("/")).status_code == 401
    assert (await client.get("/live/")).status_code == 401
    assert (await client.post("/dead/act")).status_code == 403


async def test_without_a_log_in_page_nothing_is_open(make: Make, client_of: Client) -> None:
    """Mounted in an application, its authorize decides alone: no path is free, for reading or for posting."""
    app = make(authorize=lambda _: None)
    client = client_of(app)

    assert {(await client.get(path)).status_code for path in ("/login", "/static/style.css", "/static/")} == {401}
    assert {(await client.post(path)).status_code for path in ("/login", "/static/x", "/dead/act")} == {403}


@pytest.mark.parametrize("path", ["/", "/streams", "/dead", "/jobs", "/no/such/page"])
async def test_no_page_is_kept_by_a_browser_or_a_proxy(make: Make, client_of: Client, path: str) -> None:
    """A page may show payloads: the next user of the browser must not find it."""
    assert (await client_of(make()).get(path)).headers["cache-control"] == "no-store"


async def test_an_async_authorize_is_awaited(make: Make, client_of: Client) -> None:
    async def authorize(_request: Request) -> Access | None:
        return None

    assert (await client_of(make(authorize=authorize)).get("/")).status_code == 401


async def test_an_authorize_that_returns_nonsense_is_an_error(make: Make, client_of: Client) -> None:
    with pytest.raises(ConfigurationError, match="must return an Access"):
        await client_of(make(authorize=lambda _: True)).get("/")


async def test_a_body_of_unknown_size_is_refused_unread(make: Make, client_of: Client) -> None:
    """A chunked body has no length header: without a limit it would be read completely."""
    read = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal read
        read += 1
        yield b"do=replay"

    app = make(authorize=all_rights)
    method, path = next(iter(changing_routes(app)))
    answer = await client_of(app).request(method, path, content=chunks())

    assert answer.status_code == 413
    assert "content-length" not in answer.request.headers


async def test_a_large_body_is_refused_unread(make: Make, client_of: Client) -> None:
    client = client_of(make(authorize=all_rights))

    assert (await client.post("/dead/act", content=b"x" * 300_000)).status_code == 413


def in_starlette(app: Dashboard) -> Any:
    return Starlette(routes=[Mount("/ops/queue", app)])


def in_fastapi(app: Dashboard) -> Any:
    outer = FastAPI()
    outer.mount("/ops/queue", app)
    return outer


def in_django(app: Dashboard) -> Any:
    """As an ``asgi.py`` would: requests below a path go to the dashboard, which is given that path as its root."""

    async def dispatch(scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"].startswith("/ops/queue/")
        await app({**scope, "root_path": "/ops/queue"}, receive, send)

    return dispatch


@pytest.mark.parametrize("mount", [in_starlette, in_fastapi, in_django])
async def test_links_follow_the_path_it_is_mounted_at(make: Make, client_of: Client, mount: Callable[..., Any]) -> None:
    client = client_of(mount(make(authorize=all_rights)), "http://shop.example")

    page = await client.get("/ops/queue/workers")

    assert page.status_code == 200
    links = re.findall(r'(?:href|src|action|data-live)="([^"#]*)"', page.text)
    assert links
    assert [link for link in links if not link.startswith("/ops/queue/")] == []
    assert (await client.get("/ops/queue/static/dashboard.css")).status_code == 200
    assert (await client.post("/ops/queue/dead/act", data={"do": "replay"})).status_code == 403


async def test_a_server_that_is_away_is_shown_as_away(make: Make, client_of: Client) -> None:
    client = client_of(make(authorize=all_rights))

    for path in ("/", "/workers", "/dead", "/schedules", "/runs", "/audit", "/rabbit", "/stream?stream=x"):
        answer = await client.get(path)
        assert answer.status_code == 200
        assert "is unavailable" in answer.text
        assert "127.0.0.1:1" in answer.text


async def test_listening_beyond_loopback_needs_a_token() -> None:
    with pytest.raises(ConfigurationError, match="needs a token"):
        Listener(host="0.0.0.0")


async def test_reading_beyond_loopback_needs_a_log_in(client_of: Client, token: str) -> None:
    app = standalone(Listener(host="0.0.0.0", token=token), redis_url="redis://127.0.0.1:1")

    answer = await client_of(app).get("/")

    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert (await client_of(app).get("/login")).status_code == 200


async def test_a_short_token_is_refused_with_a_way_to_make_one() -> None:
    with pytest.raises(ConfigurationError, match=r"at least 16 characters.*token_urlsafe"):
        Listener(token="secret")
