"""Write docs/img/grafana-*.svg: every panel of deploy/grafana, evaluated by a real Prometheus over a short run.

    .venv/bin/python scripts/draw_panels.py [SECONDS]

A private Redis, a private RabbitMQ, an SQLite file, a processor with an inbox, a relay, a RabbitMQ consumer and a
Prometheus run for a minute, with failures, a backlog, an outage and a second consumer that takes messages away. Each
expression is asked for over that minute and drawn as Grafana would arrange it. Rates are taken over 15 s instead of 5
minutes, since the run is short.
"""

import asyncio
import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, Final

import pika
import redis
from prometheus_client import start_http_server
from sqlalchemy import Engine, create_engine

from conquiet.db import DbSession
from conquiet.processor import Processor, ProcessorSettings, RetryPolicy
from conquiet.queue.backlog_sampler import BacklogSampler
from conquiet.rabbit import Publisher, RabbitConsumer
from conquiet.runtime import RuntimeSettings
from conquiet.testing import FaultProxy, RabbitMQServer, RedisServer, free_port
from conquiet.transactional import Outbox, OutboxRelay, ToProcessor, create_tables, for_processor

ROOT: Final = Path(__file__).resolve().parents[1]
STREAM: Final = "shop"
QUEUE: Final = "shipping"
COLOURS: Final = ("#3f7fbf", "#c0562f", "#4c9a52", "#8a5fb0", "#b08a1e", "#4a9aa0", "#b0507a", "#6b6b6b")
WIDTH, HEIGHT, GAP, LEFT, TOP = 560, 210, 16, 56, 44


# ---------------------------------------------------------------- the run
async def shop(url: str, engine: Engine, seconds: float, proxy: FaultProxy) -> None:
    """Emit in waves; fail some; make Redis unavailable for a moment."""
    client = redis.Redis.from_url(url)
    retry = RetryPolicy.fixed(2.0, max_attempts=2)
    processor = Processor(
        client,
        [STREAM],
        group="shop",
        concurrency=8,
        settings=ProcessorSettings(retry=retry),
        runtime=RuntimeSettings(claim_idle_ms=3_000),
    )

    def book(ctx: Any, session: DbSession) -> None:
        time.sleep(0.005 + ctx.data["order"] % 7 / 200)
        if ctx.data["order"] % 97 == 0:
            # As a worker does that takes this one for dead; the heartbeat finds out, and the entry is claimed back.
            client.xclaim(STREAM, "shop", "another", 0, [ctx.delivery.id])
            time.sleep(2.0)
        if ctx.data["order"] % 17 == 0:
            raise KeyError(ctx.id)
        Outbox().add(session, "ledger", {"order": ctx.data["order"]}, event="booked")

    processor.handler("paid")(for_processor(book, engine=engine))
    began, number = time.monotonic(), 0
    async with processor:
        outage = asyncio.create_task(_outage(proxy, seconds))
        while (passed := time.monotonic() - began) < seconds:
            for _ in range(60 if passed % 20 < 6 else 4):  # noqa: PLR2004 - a wave of 6 s, then little
                number += 1
                with contextlib.suppress(Exception):  # while Redis is unavailable
                    await processor.emit("paid", {"order": number}, delay_s=8 if number % 23 == 0 else None)
            await asyncio.sleep(0.4)
        await outage


def start_rabbit(url: str, stop: threading.Event) -> list[threading.Thread]:
    """Publish to a queue and consume it until the end; every eleventh message is refused."""

    async def publish() -> None:
        async with Publisher(url) as publisher:
            for number in itertools.count():
                if stop.is_set():
                    return
                await publisher.publish(QUEUE, {"order": number})
                await asyncio.sleep(0.02 if number // 200 % 2 else 0.1)

    async def consume() -> None:
        async def ship(message: Any) -> bool:
            return bool(message["order"] % 11)

        async with RabbitConsumer(url, QUEUE, ship, dead_letter=True):
            while not stop.is_set():  # noqa: ASYNC110 - set by a thread
                await asyncio.sleep(0.2)

    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare("dead", durable=True)
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare(QUEUE, durable=True, arguments=dead)
    return [threading.Thread(target=asyncio.run, args=(work(),)) for work in (publish, consume)]


async def _outage(proxy: FaultProxy, seconds: float) -> None:
    """Make Redis unavailable for a tenth of the run."""
    await asyncio.sleep(seconds * 0.6)
    proxy.refuse()
    proxy.disconnect()
    await asyncio.sleep(seconds * 0.1)
    proxy.accept()


def sample(url: str, stop: threading.Event) -> None:
    """Sample the backlog each second; workers do it every ten."""
    client, sampler = redis.Redis.from_url(url), BacklogSampler(STREAM, "picture", interval_s=1.0)
    while not stop.wait(0.5):
        with contextlib.suppress(Exception):
            sampler.sample(client)


@contextlib.contextmanager
def prometheus(folder: Path, target: int) -> Iterator[str]:
    """Run a Prometheus that scrapes a port each second; give its address."""
    port = free_port()
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\nscrape_configs:\n"
        f"  - {{job_name: conquiet, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}\n"
    )
    program = shutil.which("prometheus")
    if program is None:
        raise SystemExit("prometheus is not installed: scripts/setup.sh servers")
    options = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with subprocess.Popen(
        [program, *options, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL
    ) as process:
        yield f"http://127.0.0.1:{port}"
        process.terminate()


def ask(base: str, expression: str, start: float, end: float) -> list[dict[str, Any]]:
    """Return the series of an expression."""
    query = {"query": expression.replace("[5m]", "[15s]"), "start": start, "end": end, "step": 1}
    address = f"{base}/api/v1/query_range?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - our own Prometheus
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


# ---------------------------------------------------------------- the picture
def panel(title: str, unit: str, series: list[tuple[str, list[tuple[float, float]]]], start: float, end: float) -> str:
    """Draw one panel at the origin."""
    inner_w, inner_h = WIDTH - LEFT - 14, HEIGHT - TOP - 44
    highest = max((value for _, points in series for _, value in points), default=0.0) or 1.0
    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="4" fill="#ffffff" stroke="#d7d9dd"/>',
        f'<text x="14" y="24" font-size="14" font-weight="600" fill="#22252b">{escape(title)}</text>',
    ]
    for share in (0.0, 0.5, 1.0):
        y = TOP + inner_h * (1 - share)
        parts.append(f'<line x1="{LEFT}" x2="{LEFT + inner_w}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ececee"/>')
        value = highest * share
        label = f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"  # noqa: PLR2004 - three digits
        parts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" font-size="11" text-anchor="end" fill="#6b6f76">{label}</text>'
        )
    x = LEFT
    for number, (name, points) in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        drawn = " ".join(
            f"{LEFT + (at - start) / (end - start) * inner_w:.1f},{TOP + inner_h * (1 - value / highest):.1f}"
            for at, value in points
        )
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        parts.append(f'<rect x="{x}" y="{HEIGHT - 22}" width="10" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{HEIGHT - 17}" font-size="11" fill="#44474d">{escape(name)}</text>')
        x += 26 + 6 * len(name)
    if not series:
        parts.append(f'<text x="{LEFT}" y="{TOP + 50}" font-size="12" fill="#6b6f76">no series in this run</text>')
    return "\n".join(parts)


def draw(board: dict[str, Any], base: str, start: float, end: float) -> tuple[str, list[str]]:
    """Return the picture of a dashboard, and the titles of its panels without data."""
    parts, empty, units = [], [], {"s": "s", "ops": "/s", "short": ""}
    for number, one in enumerate(board["panels"]):
        series = []
        for target in one["targets"]:
            for found in ask(base, target["expr"], start, end):
                name = target["legendFormat"]
                for label, value in found["metric"].items():
                    name = name.replace(f"{{{{{label}}}}}", value)
                points = [(at, float(value)) for at, value in found["values"] if value not in {"NaN", "+Inf"}]
                if points:
                    series.append((name, points))
        empty += [] if series else [one["title"]]
        unit = units.get(one["fieldConfig"]["defaults"]["unit"], "")
        x, y = GAP + number % 2 * (WIDTH + GAP), 56 + number // 2 * (HEIGHT + GAP)
        parts.append(f'<g transform="translate({x},{y})">{panel(one["title"], unit, series, start, end)}</g>')
    width, height = 2 * WIDTH + 3 * GAP, 56 + (len(board["panels"]) + 1) // 2 * (HEIGHT + GAP)
    head = f'<text x="{GAP}" y="36" font-size="18" font-weight="600" fill="#22252b">{escape(board["title"])}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif"><rect width="100%" height="100%" fill="#f4f5f5"/>{head}{"".join(parts)}</svg>\n'
    ), empty


def main() -> None:
    """Run the shop and write the pictures."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    server, _thread = start_http_server(0, "127.0.0.1")
    stop = threading.Event()
    with (
        tempfile.TemporaryDirectory() as name,
        RedisServer() as source,
        RabbitMQServer() as broker,
        FaultProxy(source.host, source.port) as proxy,
    ):
        engine = create_engine(f"sqlite:///{name}/shop.db")
        create_tables(engine)
        relay = OutboxRelay(engine, {"ledger": ToProcessor(redis.Redis.from_url(source.url), "ledger")})
        threads = [threading.Thread(target=relay.run), threading.Thread(target=sample, args=(source.url, stop))]
        threads += start_rabbit(broker.url, stop)
        with prometheus(Path(name), server.server_port) as base:
            for thread in threads:
                thread.start()
            start = time.time()
            asyncio.run(shop(proxy.url_for(source.url), engine, seconds, proxy))
            end = time.time()
            relay.stop()
            stop.set()
            for thread in threads:
                thread.join(30)
            for path in sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json")):
                picture, empty = draw(json.loads(path.read_text()), base, start, end)
                (ROOT / "docs" / "img" / f"grafana-{path.stem}.svg").write_text(picture, encoding="utf-8")
                print(path.stem, "without data:", ", ".join(empty) or "none")


if __name__ == "__main__":
    main()
