"""An application with a partitioned stream: one worker reads messages of ``emit``, of threads and of the outbox."""

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import redis
from sqlalchemy.orm import Session

from conquiet import App, AppSettings, Emit, JobContext, SyncEmit
from conquiet.processor import ProcessorSettings
from conquiet.processor.partitions import partition_name, partition_of
from conquiet.testing import wait_until_async

PARTITIONS = 4


async def test_messages_of_every_way_use_all_partitions(redis_url: str, key_prefix: str, tmp_path: Path) -> None:
    processor = ProcessorSettings(refresh_s=0.2)
    app = App(
        f"{key_prefix}shop",
        redis=redis_url,
        database=f"sqlite:///{tmp_path / 'shop.db'}",
        concurrency=8,
        settings=AppSettings(partitions=PARTITIONS, relay_poll_s=0.05, processor=processor),
    )
    app.create_tables()
    shipped: Counter[str] = Counter()
    by_key: dict[str, list[int]] = {f"customer-{k}": [] for k in range(3)}

    @app.handler("order")
    def order(data: dict[str, Any], session: Session, emit: SyncEmit) -> None:
        emit("ship", {"id": data["id"]})
        for number in range(3):
            emit("bill", {"n": 3 * data["n"] + number}, key="customer-0")

    @app.handler("load")
    async def load(data: dict[str, Any], emit: Emit) -> None:
        await emit.many("ship", [{"id": f"c-{number}"} for number in range(PARTITIONS)])

    @app.handler("ship")
    async def ship(data: dict[str, Any]) -> None:
        shipped[data["id"]] += 1

    @app.handler("bill")
    async def bill(data: dict[str, Any], ctx: JobContext) -> None:
        by_key[ctx.key or ""].append(data["n"])

    @app.handler("total")
    async def total(data: dict[str, Any]) -> int:
        return int(data["n"]) + 1

    client: Any = redis.Redis.from_url(redis_url)
    names = [partition_name(app.assembly.stream, index) for index in range(PARTITIONS)]
    async with app:
        await wait_until_async(lambda: all(client.exists(name) for name in names))
        for number in range(4):
            await app.emit("order", {"id": f"a-{number}", "n": number})
        await asyncio.to_thread(app.emit_sync, "ship", {"id": "b"})
        await app.emit("load", {})
        for number in range(5):
            await app.emit("bill", {"n": number}, key="customer-1")
            await asyncio.to_thread(app.emit_sync, "bill", {"n": number}, key="customer-2")
        totals = [await app.emit_and_wait("total", {"n": n}, timeout_s=60) for n in range(PARTITIONS)]
        totals.append(await app.emit_and_wait("total", {"n": 10}, key="customer-1", timeout_s=60))
        by_thread = partial(app.emit_and_wait_sync, "total", {"n": 20}, key="customer-2", timeout_s=60)
        totals.append(await asyncio.to_thread(by_thread))
        await wait_until_async(lambda: len(shipped) == 9 and [len(one) for one in by_key.values()] == [12, 5, 5])
        added = [client.xinfo_stream(name)["entries-added"] for name in names]
    client.close()

    assert totals == [1, 2, 3, 4, 11, 21]
    assert set(shipped.values()) == {1}
    assert by_key["customer-1"] == by_key["customer-2"] == list(range(5))
    # Four transactions in any order; within each, the order of the outbox.
    assert all(
        by_key["customer-0"].index(3 * n + i) < by_key["customer-0"].index(3 * n + i + 1)
        for n in range(4)
        for i in (0, 1)
    )
    assert all(added)
    assert added[partition_of("customer-0", PARTITIONS)] >= 12
