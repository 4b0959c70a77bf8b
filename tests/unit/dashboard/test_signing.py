"""Log-in by token: lifetime of a session, and the limit of guesses."""

from collections.abc import Callable

import pytest
from httpx import AsyncClient
from starlette.requests import Request

from conquiet.dashboard import Dashboard
from conquiet.dashboard.server import Listener, standalone
from conquiet.dashboard.signing import CSRF_COOKIE, SESSION_COOKIE, SESSION_S, FormTokens, TokenLogin, sign

Client = Callable[..., AsyncClient]


async def test_the_right_token_opens_a_session_in_a_strict_cookie(
    with_token: Dashboard, client_of: Client, token: str
) -> None:
    client = client_of(with_token)

    answer = await client.post("/login", data={"token": token})

    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert token not in cookie
    assert "Log out" in (await client.get("/workers")).text


async def test_cookies_are_secure_everywhere_but_on_plain_loopback(client_of: Client, token: str) -> None:
    app = standalone(Listener(token=token, allowed_hosts=("ops.example",)), redis_url="redis://127.0.0.1:1")

    far = await client_of(app, "https://ops.example").post("/login", data={"token": token})
    plain = await client_of(app, "http://ops.example").post("/login", data={"token": token})
    near = await client_of(app, "http://127.0.0.1").post("/login", data={"token": token})

    assert "Secure" in far.headers["set-cookie"]
    assert "Secure" in plain.headers["set-cookie"]
    assert "Secure" not in near.headers["set-cookie"]


async def test_ten_wrong_tokens_block_the_log_in_for_a_minute(
    with_token: Dashboard, client_of: Client, token: str
) -> None:
    client = client_of(with_token)

    answers = [(await client.post("/login", data={"token": f"guess {number}"})).status_code for number in range(12)]

    assert answers == [401] * 10 + [429] * 2
    assert (await client.post("/login", data={"token": token})).status_code == 429


async def test_a_forged_or_old_session_is_none(with_token: Dashboard, client_of: Client) -> None:
    for value in ("", "x", "1.x.y", "9999999999.abc.0000", "..", "1.2.3.4"):
        client = client_of(with_token)
        client.cookies.set("conquiet_session", value)
        assert "Log in" in (await client.get("/workers")).text


async def test_a_session_or_form_token_that_is_not_ascii_is_refused(
    with_token: Dashboard, client_of: Client, token: str
) -> None:
    forged = await client_of(with_token).get("/workers", headers=[(b"cookie", "conquiet_session=1.\xe9".encode())])
    client = client_of(with_token)
    await client.post("/login", data={"token": token})
    await client.get("/workers")
    posted = await client.post("/dead/act", data={"csrf": "\xe9"})

    assert "Log in" in forged.text
    assert (posted.status_code, "This form has expired" in posted.text) == (403, True)


async def test_a_session_survives_a_restart_with_the_same_token(client_of: Client, token: str) -> None:
    first = client_of(standalone(Listener(token=token), redis_url="redis://127.0.0.1:1"))
    await first.post("/login", data={"token": token})
    second = client_of(standalone(Listener(token=token), redis_url="redis://127.0.0.1:1"))
    other = client_of(standalone(Listener(token="another token of yours"), redis_url="redis://127.0.0.1:1"))
    for client in (second, other):
        client.cookies.update(first.cookies)

    assert "Log out" in (await second.get("/workers")).text
    assert "Log out" not in (await other.get("/workers")).text


async def test_a_log_in_from_another_origin_is_refused(with_token: Dashboard, client_of: Client, token: str) -> None:
    answer = await client_of(with_token).post(
        "/login", data={"token": token}, headers={"origin": "https://evil.example"}
    )

    assert answer.status_code == 403


def request(cookie: str = "") -> Request:
    headers = [(b"cookie", cookie.encode())] if cookie else []
    return Request({"type": "http", "method": "GET", "path": "/", "headers": headers, "state": {}})


def test_a_form_token_belongs_to_one_browser_and_one_user() -> None:
    forms = FormTokens("a secret of the process")
    page = request()
    token = forms.token(page, "ann")
    browser, other = (request(f"{CSRF_COOKIE}={nonce}") for nonce in (page.state.csrf_nonce, "another"))

    assert forms.is_valid(browser, "ann", token)
    assert not forms.is_valid(browser, "bob", token)
    assert not forms.is_valid(other, "ann", token)
    assert not forms.is_valid(request(), "ann", token)
    assert not FormTokens("another secret of ours").is_valid(browser, "ann", token)


def request_with(**cookies: str) -> Request:
    words = "; ".join(f"{name}={value}" for name, value in cookies.items())
    return Request({"type": "http", "headers": [(b"cookie", words.encode())], "state": {}})


def test_a_form_is_worthless_to_another_user_and_in_another_browser() -> None:
    """A visitor may load a page; logged in later, or by another visitor, that page's forms change nothing."""
    forms, browser = FormTokens("secret"), request_with(**{CSRF_COOKIE: "one"})
    users = ("visitor", "token", "jane", "")
    given = {user: forms.token(browser, user) for user in users}

    for user in users:
        assert [other for other in users if forms.is_valid(browser, user, given[other])] == [user]
        assert not forms.is_valid(request_with(**{CSRF_COOKIE: "two"}), user, given[user])
        assert not forms.is_valid(request_with(), user, given[user])
        assert not FormTokens("another secret").is_valid(browser, user, given[user])


@pytest.mark.parametrize(
    ("age_s", "is_open"), [(0, True), (SESSION_S - 1, True), (SESSION_S, False), (SESSION_S + 1, False), (-60, False)]
)
def test_a_session_ends_after_twelve_hours_and_none_begins_in_the_future(age_s: int, is_open: bool) -> None:  # noqa: FBT001
    """A clock that was set back must not lengthen sessions without end."""
    issued = f"{1_000_000 - age_s}.abc"
    cookie = f"{issued}.{sign('secret', 'session', issued)}"
    login = TokenLogin("a token", secret="secret", open_reading=False, clock=lambda: 1_000_000.0)

    assert (login.authorize(request_with(**{SESSION_COOKIE: cookie})) is not None) is is_open
