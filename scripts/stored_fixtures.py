"""Keep what this version stores: run a small scene with its own code, and write the bytes down.

    python scripts/stored_fixtures.py            write tests/fixtures/stored/<version>.json

Run it once for each release, commit the file, and never change it afterwards: tests/integration/test_stored_bytes.py
reads every file with the code of the day. The scene has a queue, a processor (waiting, delayed, dead, ordered by key,
finished, cancelled), a schedule, and rows of inbox and outbox.
"""

import asyncio
import base64
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from sqlalchemy import Engine, create_engine, text

from conquiet import QueueConfig, __version__
from conquiet.management import JobAdmin
from conquiet.processor import JobContext, Processor, ProcessorSettings, Reject
from conquiet.queue import QueueConsumer
from conquiet.scheduler import Every, ScheduleEntry, Scheduler
from conquiet.testing import RedisServer
from conquiet.transactional import Inbox, InboxKey, Outbox, create_tables

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "stored"
TABLES = ("conquiet_inbox", "conquiet_outbox")


# ------------------------------------------------------------------ bytes and JSON
def pack(value: Any) -> Any:
    """Return a value for JSON: bytes as text if they are ASCII, else in base64."""
    if isinstance(value, bytes):
        return value.decode() if value.isascii() else {"base64": base64.b64encode(value).decode()}
    if isinstance(value, list | tuple):
        return [pack(one) for one in value]
    return value


def unpack(value: Any) -> Any:
    """Return what ``pack`` was given; texts come back as bytes."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return [unpack(one) for one in value] if isinstance(value, list) else value


# ------------------------------------------------------------------ Redis
def commands_of(client: Any) -> list[list[Any]]:
    """Return plain commands that make the keys of a database again."""
    found: list[list[Any]] = []
    for key in sorted(client.scan_iter()):
        kind = client.type(key)
        if kind == b"stream":
            found += _stream(client, key)
        elif kind == b"hash":
            found.append(["HSET", key, *(part for pair in sorted(client.hgetall(key).items()) for part in pair)])
        elif kind == b"zset":
            members = client.zrange(key, 0, -1, withscores=True)
            found.append(["ZADD", key, *(part for name, score in members for part in (repr(score).encode(), name))])
        elif kind == b"set":
            found.append(["SADD", key, *sorted(client.smembers(key))])
        elif kind == b"list":
            found.append(["RPUSH", key, *client.lrange(key, 0, -1)])
        else:
            found.append(["SET", key, client.get(key)])
    return [pack(command) for command in found]


def _stream(client: Any, key: bytes) -> list[list[Any]]:
    found = [
        ["XADD", key, identifier, *(part for pair in fields.items() for part in pair)]
        for identifier, fields in client.xrange(key)
    ]
    for group in client.xinfo_groups(key):
        found.append(["XGROUP", "CREATE", key, group["name"], group["last-delivered-id"], "MKSTREAM"])
        found += [
            ["XCLAIM", key, group["name"], entry["consumer"], b"0", entry["message_id"], "FORCE", "JUSTID"]
            for entry in client.xpending_range(key, group["name"], "-", "+", 100)
        ]
    return found


def restore(client: Any, commands: list[list[Any]]) -> None:
    """Make the keys again."""
    for command in commands:
        client.execute_command(*unpack(command))


# ------------------------------------------------------------------ tables
def rows_of(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of both tables; times are left out, and are now when a row is inserted again."""
    found: dict[str, list[dict[str, Any]]] = {}
    with engine.connect() as connection:
        for table in TABLES:
            rows = connection.execute(text(f"SELECT * FROM {table}")).mappings()  # noqa: S608 - a constant
            found[table] = [
                {name: pack(value) for name, value in row.items() if not name.endswith("_at") and name != "seq"}
                for row in rows
            ]
    return found


def insert_rows(engine: Engine, rows: dict[str, list[dict[str, Any]]]) -> None:
    """Insert such rows into the tables of any database."""
    now = {"sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now')", "postgresql": "now()"}.get(
        engine.dialect.name, "UTC_TIMESTAMP(6)"
    )
    times = {"conquiet_inbox": ("handled_at",), "conquiet_outbox": ("created_at", "due_at")}
    with engine.begin() as connection:
        for table, found in rows.items():
            for row in found:
                columns = [*row, *times[table]]
                values = [*(f":{name}" for name in row), *(now for _ in times[table])]
                connection.execute(
                    text(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(values)})"),  # noqa: S608
                    {name: unpack(value) for name, value in row.items()},
                )


# ------------------------------------------------------------------ the scene
async def play(url: str, engine: Engine) -> None:
    """Let this version write something of everything."""
    with redis.Redis.from_url(url) as client:
        consumer = QueueConsumer(client, QueueConfig("payments", "billing", "old-worker", block_ms=100))
        with consumer:
            consumer.queue.enqueue({"order": 1, "name": "Zoë"}, idempotency_key="order-1")
            consumer.queue.enqueue({"order": 2})
            pending = consumer.next()  # its worker is gone before it acknowledges
    async with redis.asyncio.Redis.from_url(url) as client:
        await _play_processor(client)
        entry = ScheduleEntry("hourly", Every(3600), "report.make", "reports", {"kind": "sales"})
        async with Scheduler(client, [entry]) as scheduler:
            await scheduler.add(ScheduleEntry("added", Every(7200), "report.make", "reports"))
            await scheduler.pause("added")
    create_tables(engine)
    with engine.begin() as connection:
        inbox = Inbox()
        for message in (InboxKey("orders", "billing", "order-1"), pending):  # an id of a producer, an id of Redis
            with inbox.once(connection, message):
                pass
        Outbox().add(connection, "ledger", {"order": 1, "name": "Zoë"}, key="customer-3", event="order.paid",
            headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})  # fmt: skip


async def _play_processor(client: redis.asyncio.Redis) -> None:
    processor = Processor(client, ["orders"], settings=ProcessorSettings(job_ttl_s=86_400))

    @processor.handler("order.refused")
    async def refuse(_: JobContext) -> None:
        raise Reject("never")

    @processor.handler("order.done")
    async def done(_: JobContext) -> dict[str, int]:
        return {"cents": 500}

    async with processor:
        await processor.emit("order.refused", {"order": 3}, id="refused-3")
        await processor.emit_and_wait("order.done", {"order": 4}, id="done-4", timeout_s=30, keep_result_s=86_400)
        dead = processor.dead_letters("orders")
        async with asyncio.timeout(30):
            while not (await dead.list(limit=1)).items:  # noqa: ASYNC110 - the letter is in Redis
                await asyncio.sleep(0.02)
    await processor.emit("order.paid", {"order": 5, "name": "Zoë"}, id="waiting-5", headers={"traceparent": "00-x"})
    await processor.emit("order.paid", {"order": 6}, id="delayed-6", delay_s=3_600)
    await processor.emit("order.paid", {"order": 9}, id="cancelled-9", delay_s=3_600)
    await JobAdmin(client, "orders").cancel("cancelled-9")
    await processor.emit("order.paid", {"order": 7}, id="keyed-7", key="customer-3")
    await processor.emit("order.paid", {"order": 8}, id="keyed-8", key="customer-3")


def main() -> int:
    """Write the file of this version."""
    file = FOLDER / f"{__version__.partition('.dev')[0]}.json"
    with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/shop.db")
        asyncio.run(play(server.url, engine))
        with redis.Redis.from_url(server.url) as client:
            stored = {"version": __version__, "redis": commands_of(client), "rows": rows_of(engine)}
        engine.dispose()
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Tracebacks name files of this checkout, and the fixture is to name no machine.
    text = json.dumps(stored, indent=1, ensure_ascii=False).replace(str(FOLDER.parents[2]), "/srv/shop/code")
    file.write_text(text + "\n", encoding="utf-8")
    print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
