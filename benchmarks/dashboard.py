"""The cost and the speed of the dashboard: streams live, dead letters, first paint, killed workers, the engine.

    python benchmarks/dashboard.py               all of them, small
    python benchmarks/dashboard.py --full        a million dead letters, a replay of 100,000
    python benchmarks/dashboard.py --only red    one of: streams, dead, paint, red, red-many, engine

Numbers depend on the machine; what is compared is said with each.
"""

import argparse
import asyncio
import contextlib
import gzip
import json
import random
import shutil
import socket
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import redis
import redis.asyncio
from httpx import AsyncClient

import conquiet.dashboard
from conquiet.dashboard.server import Listener, make_server, standalone
from conquiet.management import workers
from conquiet.processor.dead_letter_record import DeadRecord, encode_record
from conquiet.runtime import Consumer
from conquiet.testing import RedisServer

TOKEN = "a token of the benchmark"


class Served:
    """A dashboard in a separate thread."""

    def __init__(self, redis_url: str) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        listener = Listener(token=TOKEN)
        self._server = make_server(standalone(listener, redis_url=redis_url), listener)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve(sockets=[self._socket])))

    def __enter__(self) -> "Served":  # noqa: PYI034
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()


async def many_streams(url: str, count: int, seconds: float) -> None:
    with redis.Redis.from_url(url) as client:
        pipe = client.pipeline(transaction=False)
        for number in range(count):
            pipe.xgroup_create(f"stream-{number:04}", "processor", "0", mkstream=True)
        pipe.execute()
        with Served(url) as served:
            async with AsyncClient(timeout=60) as browser, browser.stream("GET", f"{served.url}/live/") as events:
                updates = 0

                async def follow() -> None:
                    nonlocal updates
                    async for line in events.aiter_lines():
                        updates += line == "event: page"

                task = asyncio.create_task(follow())
                await asyncio.sleep(12)  # the doctor's examination, once in five minutes, is over
                used = client.info("cpu")
                cpu, began = time.process_time(), time.monotonic()
                await asyncio.sleep(seconds)
                spent = time.monotonic() - began
                own_cpu = (time.process_time() - cpu) / spent
                redis_cpu = (_seconds(client.info("cpu")) - _seconds(used)) / spent
                commands = await asyncio.to_thread(_sent_per_second, client, seconds)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                print(
                    f"{count} streams live, {updates} updates: {own_cpu:.1%} of a core here, {redis_cpu:.1%} in Redis"
                )
                print(f"{count} streams live: {commands:.1f} commands sent per second")


def _seconds(info: Any) -> float:
    return float(info["used_cpu_user"] + info["used_cpu_sys"])


def _sent_per_second(client: Any, seconds: float) -> float:
    """Return the commands that clients sent, the doctor's included: EVAL counts once, the calls of a script do not."""
    sent = 0
    with client.monitor() as monitor:
        threading.Timer(seconds, client.echo, ["the end"]).start()
        began = time.monotonic()
        for command in monitor.listen():
            if "the end" in command["command"]:
                break
            sent += command["client_type"] != "lua"
    return sent / (time.monotonic() - began)


async def many_dead_letters(url: str, count: int, replayed: int) -> None:
    with redis.Redis.from_url(url) as client:
        client.xgroup_create("orders", "processor", "0", mkstream=True)
        for start in range(0, count, 5_000):
            pipe = client.pipeline(transaction=False)
            for number in range(start, min(count, start + 5_000)):
                error = "shop.CardDeclined" if number % (count // replayed) == 0 else "shop.Gone"
                payload = {"v": 1, "event": "paid", "id": str(number), "data": {"n": number}}
                record = DeadRecord(reason="attempts", event="paid", id=str(number), entry_id="1-1", group="processor",
                                    error_type=error, attempts=3, payload=payload)  # fmt: skip
                pipe.xadd("{orders}:dead", {"data": encode_record(record)})
            pipe.execute()
        with Served(url) as served:
            async with AsyncClient(timeout=600, follow_redirects=True) as browser:
                await browser.post(f"{served.url}/login", data={"token": TOKEN})
                took = []
                for _ in range(10):
                    began = time.perf_counter()
                    page = await browser.get(f"{served.url}/dead?stream=orders")
                    took.append(time.perf_counter() - began)
                middle, longest = statistics.median(took) * 1000, max(took) * 1000
                print(f"page of {count:,} dead letters: median {middle:.0f} ms, longest {longest:.0f} ms")
                csrf = page.text.partition('name="csrf" value="')[2].partition('"')[0]
                form = {"csrf": csrf, "stream": "orders", "do": "replay", "scope": "all", "error": "CardDeclined"}
                began = time.perf_counter()
                answer = await browser.post(f"{served.url}/dead/act", data=form)
                run = str(answer.url).partition("id=")[2].partition("&")[0]
                await _until(browser, f"{served.url}/run?id={run}", "counted")
                print(f"dry run: counted in {time.perf_counter() - began:.1f} s")
                began = time.perf_counter()
                await browser.post(
                    f"{served.url}/run/confirm", data={"csrf": csrf, "stream": "orders", "do": "replay", "id": run}
                )
                await _until(browser, f"{served.url}/run?id={run}", "done")
                print(f"replayed {client.xlen('orders'):,} by filter in {time.perf_counter() - began:.1f} s, "
                      f"{client.xlen('{orders}:dead'):,} dead letters left")  # fmt: skip


async def _until(browser: AsyncClient, url: str, state: str) -> None:
    while f'data-state="{state}"' not in (await browser.get(url)).text:  # noqa: ASYNC110 - polls a server
        await asyncio.sleep(0.2)


def _chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


async def first_paint(url: str) -> None:
    """Time what the browser itself reports, with an empty cache (a new context) and again in the same one.

    In brackets: when the browser had the whole answer of the server.
    """
    chromium = _chromium()
    if chromium is None:
        print("first paint: no Chromium here")
        return
    from playwright.async_api import async_playwright

    script = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    with Served(url) as served:
        async with async_playwright() as playwright:
            started = await playwright.chromium.launch(executable_path=chromium, args=["--headless", "--no-sandbox"])
            bare = "data:text/html,<p>a page without anything: what the browser itself needs"
            for address in (bare, f"{served.url}/", f"{served.url}/workers", f"{served.url}/dead?stream=orders"):
                found: dict[str, list[tuple[float, float]]] = {"empty cache": [], "again": []}
                for _ in range(5):
                    context = await started.new_context()
                    page = await context.new_page()
                    for times in found.values():
                        await page.goto(address)
                        while (painted := await page.evaluate(script)) is None:  # noqa: ASYNC110 - polls a browser
                            await asyncio.sleep(0.01)
                        answered = await page.evaluate("performance.getEntriesByType('navigation')[0].responseEnd")
                        times.append((float(painted), float(answered)))
                    await context.close()
                for name, times in found.items():
                    shown = ", ".join(f"{painted:.0f} ({answered:.0f})" for painted, answered in times)
                    what = "a bare page" if address is bare else address.removeprefix(served.url)
                    print(f"first contentful paint of {what}, {name}: {shown} ms")
            await started.close()


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

        await processor.start()

asyncio.run(main())
"""


def _patched(name: str, value: Any) -> Any:
    return mock.patch.object(workers, name, value)


async def killed_workers(url: str, streams: int, turns: int) -> None:
    """Time from SIGKILL of a worker to its red row in the browser, with the dashboard on its machine and elsewhere."""
    chromium = _chromium()
    if chromium is None:
        print("killed workers: no Chromium here")
        return
    from playwright.async_api import async_playwright

    with redis.Redis.from_url(url) as client:
        pipe = client.pipeline(transaction=False)
        for number in range(streams):
            pipe.xgroup_create(f"stream-{number:04}", "processor", "0", mkstream=True)
        pipe.execute()
    with Served(url) as served:
        async with async_playwright() as playwright:
            started = await playwright.chromium.launch(executable_path=chromium, args=["--headless", "--no-sandbox"])
            page = await started.new_page()
            await page.goto(f"{served.url}/workers")
            for where in ("its own machine", "another machine"):
                sees_processes = where == "its own machine"
                with contextlib.nullcontext() if sees_processes else _patched("has_ended", lambda _token: False):
                    took = [await _kill_one(url, page) for _ in range(turns)]
                shown = ", ".join(f"{one:.2f}" for one in took)
                print(f"killed worker of {where}, {streams + 1} streams: red after {shown} s")
            await started.close()


async def _kill_one(url: str, page: Any) -> float:
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", WORKER, url)
    await page.locator(f"tr.state-live:has-text('{worker.pid}')").wait_for(timeout=60_000)
    await asyncio.sleep(1 + random.random())  # at any moment between two looks
    worker.kill()
    began = time.perf_counter()
    await page.locator(f"tr.state-dead:has-text('{worker.pid}')").wait_for(timeout=60_000)
    took_s = time.perf_counter() - began
    await worker.wait()
    return took_s


def assets() -> None:
    folder = Path(conquiet.dashboard.__file__).parent / "static"
    size = sum(len(gzip.compress(path.read_bytes())) for path in folder.iterdir())
    print(f"assets: {size / 1000:.1f} kB compressed, in {len(list(folder.iterdir()))} files")


async def _consume(client: Any, messages: int, *, report: bool) -> float:
    """Return the CPU time per message, in microseconds."""
    await client.flushall()
    for start in range(0, messages, 1_000):
        pipe = client.pipeline(transaction=False)
        for number in range(start, start + 1_000):
            pipe.xadd("orders", {"data": json.dumps({"n": number})})
        await pipe.execute()
    seen = 0
    done = asyncio.Event()

    async def handle(_message: Any, _ctx: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == messages:
            done.set()

    cpu = time.process_time()
    async with Consumer(streams=["orders"], redis=client, handler=handle, concurrency=32, report_activity=report):
        await done.wait()
    return (time.process_time() - cpu) / messages * 1e6


async def engine(url: str, messages: int, rounds: int) -> None:
    """Compare an engine that reports with an engine that does not, in turns, by CPU time."""
    found: dict[bool, list[float]] = {False: [], True: []}
    async with redis.asyncio.Redis.from_url(url) as client:
        for turn in range(2 * rounds):
            report = bool(turn % 2)
            found[report].append(await _consume(client, messages, report=report))
    plain, reporting = statistics.median(found[False]), statistics.median(found[True])
    print(f"engine: {plain:.1f} µs CPU per message, {reporting:.1f} µs with reports (ratio {reporting / plain:.3f})")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    assets()
    runs: dict[str, Any] = {
        "streams": lambda url: many_streams(url, 1_000, 15),
        "dead": lambda url: many_dead_letters(url, *((1_000_000, 100_000) if options.full else (50_000, 5_000))),
        "paint": first_paint,
        "red": lambda url: killed_workers(url, 0, 5),
        "red-many": lambda url: killed_workers(url, 1_000, 3),
        "engine": lambda url: engine(url, 20_000, 3),
    }
    for name, run in runs.items():
        if options.only in {"", name}:
            with RedisServer() as server:
                await run(server.url)


if __name__ == "__main__":
    asyncio.run(main())
