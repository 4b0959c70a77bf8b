"""Write docs/img/dashboard-*.png: each page of the dashboard, before private servers with a small shop in them.

    make screenshots

Messages are real and run through real workers. The hours before are written as workers would have written them, since
nothing waits two weeks for a picture.
"""

import asyncio
import contextlib
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pika
import redis
import redis.asyncio
from playwright.async_api import Browser, async_playwright
from sqlalchemy import Engine, create_engine

from conquiet.core.backoff import Backoff
from conquiet.dashboard.server import Listener, make_server, standalone
from conquiet.db import DbSession
from conquiet.processor import Processor, ProcessorSettings, Reject, RetryPolicy
from conquiet.rabbit import RabbitConsumer
from conquiet.redis_transport.worker_reports import (
    deploys_key,
    history_base,
    minutes_key,
    quarters_key,
    workers_key,
)
from conquiet.scheduler import Cron, Every, ScheduleEntry, Schedules
from conquiet.testing import RabbitMQServer, RedisServer, wait_until_async
from conquiet.transactional import Outbox, OutboxMessage, OutboxRelay, PublishOutcome, create_tables, for_processor
from conquiet.transactional.targets import Results

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "img"
TOKEN = "a token for the screenshots"  # noqa: S105 - of a private server
STREAMS = ("orders", "emails", "invoices", "shop:eu:shipments-with-a-rather-long-name", "thumbnails")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
WIDTH, HEIGHT = 1280, 720
MOST_BYTES = 150_000


class CardDeclinedError(Exception):
    """The bank's message."""


def write_past(url: str) -> None:
    """Write the history of two weeks: quiet nights, busy days, a deploy forty minutes ago."""
    now_s = int(time.time())
    chance = random.Random(7)  # noqa: S311 - for pictures
    with redis.Redis.from_url(url) as client:
        for at, stream in enumerate(STREAMS):
            base, pipe = history_base(stream, "processor"), client.pipeline(transaction=False)
            for minute in range(now_s // 60 - 60, now_s // 60):
                number = int((220 >> at) * (1 + 0.25 * chance.gauss(0, 1)) * (1.35 if minute % 60 > 35 else 1))  # noqa: PLR2004
                _count(pipe, minutes_key(base, minute // 60), minute % 60, max(0, number), chance)
            for quarter in range(now_s // 900 - 14 * 96, now_s // 900):
                busy = 0.35 + 0.65 * (28 < quarter % 96 < 80)  # noqa: PLR2004
                number = int((3_000 >> at) * busy * (1 + 0.1 * chance.gauss(0, 1)))
                _count(pipe, quarters_key(base, quarter // 96), quarter % 96, max(0, number), chance)
            pipe.zadd(deploys_key(stream), {"shop 2026.11.2": now_s - 2_400, "shop 2026.11.1": now_s - 4 * 86_400})
            pipe.execute()


def _count(pipe: Any, key: str, at: int, number: int, chance: random.Random) -> None:
    failed = int(number * 0.015 * chance.random())
    pipe.hincrby(key, f"{at}:ok", number - failed)
    pipe.hincrby(key, f"{at}:failed", failed)
    for bucket, share in ((1, 0.3), (2, 0.45), (3, 0.18), (5, 0.05), (6, 0.02)):
        pipe.hincrby(key, f"{at}:h{bucket}", int(number * share * (0.7 + 0.6 * chance.random())))


def make_processor(client: Any, engine: Engine) -> Processor:
    """Return a worker of the shop."""
    processor = Processor(client, list(STREAMS), concurrency=16, settings=ProcessorSettings(job_ttl_s=3_600.0))
    once = RetryPolicy(max_attempts=1)

    @processor.handler("order.paid", retry=once)
    async def paid(ctx: Any) -> None:
        await asyncio.sleep(random.expovariate(60))
        if ctx.data["n"] % 37 == 0:
            raise CardDeclinedError
        if ctx.data["n"] % 91 == 0:
            raise Reject("the order was cancelled by the customer")

    @processor.handler("mail.send", retry=RetryPolicy(max_attempts=5))
    async def send(ctx: Any) -> None:
        await asyncio.sleep(random.expovariate(25))
        if ctx.data["n"] % 23 == 0:
            raise ConnectionRefusedError

    add_effects(processor, engine)
    return processor


def add_effects(processor: Processor, engine: Engine) -> None:
    """Add the handlers that write to the database."""

    def placed(ctx: Any, session: DbSession) -> None:
        time.sleep(0.4)
        if ctx.attempt < 3:  # noqa: PLR2004 - two failed attempts for the picture
            raise CardDeclinedError
        ctx.emit("mail.send", {"n": 1}, id="mail-1001", stream="emails")
        ctx.emit("invoice.export", {"n": 1}, id="invoice-1001", stream="invoices")
        Outbox().add(session, "ledger", {"n": 1})

    retry = RetryPolicy(max_attempts=5, backoff=Backoff(base_s=0.2))
    processor.handler("order.placed", retry=retry)(for_processor(placed, engine=engine))

    def export(ctx: Any, session: DbSession) -> None:
        time.sleep(random.expovariate(60))  # SQLite has one writer
        if ctx.data["n"] % 29 == 0:
            raise TimeoutError
        if ctx.data["n"] % 5 == 0:
            Outbox().add(session, "ledger", {"n": ctx.data["n"]})

    processor.handler("invoice.export", retry=RetryPolicy(max_attempts=1))(for_processor(export, engine=engine))


async def feed(processor: Processor) -> None:
    """Emit messages as a shop would."""
    number = 0
    await processor.emit("order.placed", {"n": 1001}, id="order-1001", stream="orders")
    while True:
        for stream, event, many in (
            ("orders", "order.paid", 12),
            ("emails", "mail.send", 8),
            ("invoices", "invoice.export", 3),
        ):
            for _ in range(many):
                number += 1
                await processor.emit(event, {"n": number, "email": "jane@example.org"}, stream=stream)
        await processor.emit("mail.send", {"n": 1}, stream="emails", delay_s=3_600.0)
        await asyncio.sleep(0.5)


async def add_schedules(client: Any) -> None:
    """Add a few entries."""
    async with Schedules(client) as schedules:
        await schedules.add(ScheduleEntry("nightly-report", Cron("30 2 * * *"), "report.build", "invoices"))
        await schedules.add(ScheduleEntry("sync-stock", Every(60), "stock.sync", "orders"))
        await schedules.add(ScheduleEntry("clean-carts", Cron("*/15 * * * *"), "carts.clean", "orders"))
        await schedules.pause("clean-carts")


class Refusing:
    """A target of the outbox that takes nothing."""

    def publish(self, messages: Sequence[OutboxMessage]) -> Results:
        """Refuse all."""
        return [(PublishOutcome.REFUSED, "no such customer") for _ in messages]


@contextlib.contextmanager
def database() -> Iterator[tuple[str, Engine]]:
    """Yield an SQLite file with the tables, and one row that a target has refused too often."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/shop.db"
        create_tables(engine := create_engine(url, pool_size=16))
        with DbSession(engine) as session:
            Outbox().add(session, "crm", {"n": 1})
        OutboxRelay(engine, {"crm": Refusing()}, max_attempts=1).relay_once()
        yield url, engine
        engine.dispose()


def fill_queues(url: str) -> None:
    """Put messages into a queue and reject some of them."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare("crm-sync.dead", durable=True)
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "crm-sync.dead"}
        channel.queue_declare("crm-sync", durable=True, arguments=dead)
        channel.queue_declare("newsletter", durable=True)
        for number in range(240):
            channel.basic_publish("", "crm-sync", b"{}", pika.BasicProperties(message_id=f"customer-{number}"))
        for _ in range(3):
            got, _, _ = channel.basic_get("crm-sync")
            if got is not None:
                channel.basic_reject(got.delivery_tag, requeue=False)


async def take_slowly(url: str) -> None:
    """Handle the messages of a queue, some per second."""

    async def sync(_message: Any) -> bool:
        await asyncio.sleep(0.3)
        return True

    async with RabbitConsumer(url, "crm-sync", sync, concurrency=2, prefetch=8):
        await asyncio.Event().wait()


async def kill_a_worker(url: str) -> None:
    """Start a worker of one stream and kill it."""
    code = (
        "import asyncio, sys, redis; from conquiet.processor import Processor;"
        "worker = Processor(redis.Redis.from_url(sys.argv[1]), ['thumbnails'], concurrency=8);"
        "worker.handler('image.scale')(print); asyncio.run(worker.start())"
    )
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", code, url)
    async with redis.asyncio.Redis.from_url(url) as client:

        async def has_two() -> bool:
            return await client.hlen(workers_key("thumbnails", "processor")) > 1  # the shop's, and this one

        await wait_until_async(has_two)
    worker.kill()
    await worker.wait()


async def shoot(browser: Browser, base: str, redis_url: str) -> None:
    """Write one picture of each page."""
    pages = {
        "stream": "/stream?stream=orders",
        "jobs": "/jobs?stream=emails&phase=delayed",
        "message": "/message?stream=orders&id=order-1001",
        "dead": "/dead?stream=orders",
        "schedules": "/schedules",
        "workers": "/workers",
        "database": "/database",
        "rabbit": "/rabbit",
        "overview": "/",  # last: the doctor has been examining since the log-in
    }
    context = await browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
    page = await context.new_page()
    await page.goto(f"{base}/login")
    await page.fill("#token", TOKEN)
    await page.press("#token", "Enter")
    await page.wait_for_selector("text=Log out")
    for name, path in pages.items():
        if name == "workers":
            await kill_a_worker(redis_url)
        await page.goto(base + path)
        await page.wait_for_timeout(2_500)
        await page.screenshot(path=IMAGES / f"dashboard-{name}.png")
    await page.goto(f"{base}/dead?stream=orders")
    await page.click("#acts tbody a")
    await page.wait_for_selector(".story")
    # The folder of this checkout is nothing for a picture.
    change = "one.textContent = one.textContent.replaceAll(root, '/srv/shop')"
    hide = f"root => {{ for (const one of document.querySelectorAll('pre')) {change}; }}"
    await page.evaluate(hide, str(IMAGES.parent.parent))
    await page.screenshot(path=IMAGES / "dashboard-dead-letter.png")
    await page.goto(f"{base}/dead?stream=orders&error=CardDeclinedError")
    await page.select_option("select[name=scope]", "all")
    await page.click("button:has-text('Replay')")
    await page.wait_for_selector("#run-state[data-state=counted]")
    await page.screenshot(path=IMAGES / "dashboard-run.png")
    phone = await browser.new_context(viewport={"width": 390, "height": 760}, color_scheme="dark")
    small = await phone.new_page()
    await small.goto(f"{base}/login")
    await small.goto(base)
    await small.wait_for_timeout(1_500)
    await small.screenshot(path=IMAGES / "dashboard-phone.png")


async def main() -> int:
    """Write the pictures; fail if one is too large for a README."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.stderr.write("there is no Chromium; 'make servers' installs it\n")
        return 1
    os.environ["CONQUIET_APP_VERSION"] = "shop 2026.11.2"
    with (
        RedisServer() as server,
        RabbitMQServer() as broker,
        database() as (db_url, engine),
        socket.socket() as listening,
    ):
        fill_queues(broker.url)
        write_past(server.url)
        listening.bind(("127.0.0.1", 0))
        listener = Listener(token=TOKEN)
        rabbit = {"rabbit_url": broker.url, "rabbit_api_url": str(broker.management_url)}
        app = standalone(listener, redis_url=server.url, db_url=db_url, reveal=True, **rabbit)
        served = make_server(app, listener)
        async with redis.asyncio.Redis.from_url(server.url) as client:
            processor = make_processor(client, engine)
            await add_schedules(client)
            tasks = [asyncio.create_task(one) for one in (served.serve(sockets=[listening]), processor.start())]
            others = [asyncio.create_task(one) for one in (feed(processor), take_slowly(broker.url))]
            await asyncio.sleep(15)
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=chromium, args=FLAGS)
                await shoot(browser, f"http://127.0.0.1:{listening.getsockname()[1]}", server.url)
                await browser.close()
            for one in others:
                one.cancel()
            processor.stop()
            served.should_exit = True
            await asyncio.gather(*tasks, *others, return_exceptions=True)
    large = [path.name for path in IMAGES.glob("dashboard-*.png") if path.stat().st_size > MOST_BYTES]
    for path in sorted(IMAGES.glob("dashboard-*.png")):
        print(f"{path.stat().st_size:>8,}  {path.name}")
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
