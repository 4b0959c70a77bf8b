"""A dashboard on a real port before a real Redis, and one Chromium for all tests of a process."""

import asyncio
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Self

import pytest
import pytest_asyncio
from httpx import ASGITransport, AsyncClient
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect
from starlette.requests import Request
from tests.redis_clients import RawRedis

from conquiet.dashboard import EVERYTHING, Access, Dashboard, DashboardSettings, dashboard
from conquiet.dashboard.server import Listener, make_server, standalone
from conquiet.processor.dead_letter_record import DeadRecord, encode_record
from conquiet.processor.keys import keys_of
from conquiet.testing import wait_until

expect.set_options(timeout=60_000)  # as long as a busy machine may take; its default is 5 s

TOKEN = "a token of 24 characters"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Served:
    """A dashboard that listens on loopback, in a thread with a separate event loop."""

    def __init__(self, app: Dashboard, listener: Listener) -> None:
        self._server = make_server(app, listener)
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self._server.started)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(30)

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))


WORKER = """
import asyncio, sys
import redis.asyncio
from conquiet.processor import Processor

async def main():
    async with redis.asyncio.Redis.from_url(sys.argv[1]) as client:
        processor = Processor(client, ["orders"], concurrency=4)

        @processor.handler("paid")
        async def paid(ctx):
            pass

        print("up", flush=True)
        await processor.start()

asyncio.run(main())
"""


@pytest.fixture
def start_worker(redis_url: str) -> Iterator[Callable[[], "subprocess.Popen[str]"]]:
    """``start_worker()``: a process with a worker of the stream ``orders``."""
    started: list[subprocess.Popen[str]] = []

    def start() -> "subprocess.Popen[str]":
        started.append(subprocess.Popen([sys.executable, "-c", WORKER, redis_url], stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


Serve = Callable[..., Served]


@pytest.fixture
def serve(redis_url: str) -> Iterator[Serve]:
    """``serve(token=…, **settings)``: a dashboard of the test's Redis; read-only without a token."""
    opened: list[Served] = []

    def start(token: str = "", **settings: Any) -> Served:
        listener = Listener(port=0, token=token)
        served = Served(standalone(listener, **{"redis_url": redis_url} | settings), listener)
        served.__enter__()
        opened.append(served)
        return served

    yield start
    for one in opened:
        one.__exit__(None, None, None)


@pytest.fixture
def raw(redis_url: str) -> Iterator[RawRedis]:
    client = RawRedis.from_url(redis_url, protocol=2)
    yield client
    client.close()


@pytest.fixture(scope="session")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "the tests need Chromium; 'make servers' installs it (Debian: apt-get install chromium)"
    return found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        await started.close()


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    made = await browser.new_context(viewport={"width": 1280, "height": 800})
    made.set_default_timeout(60_000)
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(serve: Serve, context: BrowserContext) -> AsyncIterator[Page]:
    """A page that fails its test at the end if its console had an error, or it contacted another host."""
    problems: list[str] = []
    hosts: set[str] = set()
    made = await context.new_page()
    made.on("console", lambda message: problems.append(message.text) if message.type in {"error", "warning"} else None)
    made.on("pageerror", lambda error: problems.append(str(error)))
    made.on("request", lambda request: hosts.add(request.url.split("/")[2].split(":")[0]))
    yield made
    await made.close()
    assert problems == []
    assert hosts <= {"127.0.0.1"}


LogIn = Callable[[Served], Awaitable[None]]


@pytest.fixture
def log_in(page: Page) -> LogIn:
    async def enter(served: Served) -> None:
        await page.goto(f"{served.url}/login")
        await page.fill("#token", TOKEN)
        await page.press("#token", "Enter")
        await page.wait_for_selector("text=Log out")

    return enter


@pytest.fixture
def token() -> str:
    return TOKEN


AddDead = Callable[..., None]


@pytest.fixture
def add_dead(raw: RawRedis) -> AddDead:
    """``add_dead("orders", 3, event=…, error=…, payload=…)``: dead letters of a group that exists."""

    def add(stream: str, count: int, *, event: str = "paid", error: str = "ValueError", **facts: Any) -> None:
        if not raw.exists(stream):
            raw.xgroup_create(stream, "processor", "0", mkstream=True)
        pipe = raw.pipeline(transaction=False)
        for number in range(count):
            message = f"{event}-{number}"
            payload = {"v": 1, "event": event, "id": message, "data": facts.get("data", {"n": number})}
            record = DeadRecord(
                reason="attempts",
                event=event,
                id=message,
                entry_id="1-1",
                group="processor",
                attempts=3,
                error_type=error,
                error=facts.get("text", ""),
                traceback=facts.get("traceback", ""),
                emitted_ms=1_763_244_000_000,
                failed_ms=1_763_244_001_000,
                payload=payload,
            )
            pipe.xadd(keys_of(stream).dead, {"data": encode_record(record)})
        pipe.execute()

    return add


def all_rights(_request: Request) -> Access:
    return Access("ann", EVERYTHING)


OpenClient = Callable[..., AsyncClient]


@pytest.fixture
async def open_client(redis_url: str) -> AsyncIterator[OpenClient]:
    """``open_client(authorize=…, **settings)``: a client of a dashboard that gives all rights by default."""
    apps: list[Dashboard] = []

    def build(authorize: Any = all_rights, **settings: Any) -> AsyncClient:
        app = dashboard(DashboardSettings(redis_url=redis_url, **settings), authorize=authorize)
        apps.append(app)
        return AsyncClient(transport=ASGITransport(app), base_url="http://127.0.0.1", follow_redirects=True)

    yield build
    for app in apps:
        await app.close()
