"""Fail-overs by a real Sentinel while the packages work: the caller's client decides where the master is."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from conquiet.config import QueueConfig
from conquiet.core.backoff import Backoff
from conquiet.errors import QueueError
from conquiet.processor import JobContext, Processor, ProcessorSettings, RetryPolicy
from conquiet.queue import RedisStreamsQueue
from conquiet.runtime import RuntimeSettings
from conquiet.scheduler import Every, ScheduleEntry, Scheduler
from conquiet.testing import RedisServer, wait_until, wait_until_async
from conquiet.testing.process import ServerCommand

FAILOVERS = 20 if os.environ.get("CONQUIET_TORTURE") == "1" else 1
RUNTIME = RuntimeSettings(reconnect=Backoff(base_s=0.05, cap_s=0.5), max_reconnects=1_000, recreate_group=True)


class Sentinel(RedisServer):
    """A real Sentinel watching one master."""

    def __init__(self, master: RedisServer) -> None:
        super().__init__()
        self._master = master

    def _command(self) -> ServerCommand:
        config = self.folder / "sentinel.conf"
        if not config.exists():
            config.write_text(
                f"port {self.port}\nbind {self.host}\ndir {self.folder}\nunixsocket {self.unix_socket}\n"
                f"sentinel monitor shop {self._master.host} {self._master.port} 1\n"
                "sentinel down-after-milliseconds shop 60000\nsentinel failover-timeout shop 3000\n"
            )
        return ServerCommand((str(self._binary), str(config), "--sentinel"), {})


@dataclass
class Watched:
    """Two servers, one of them the master, and the Sentinel that knows which."""

    servers: list[RedisServer]
    sentinel: Sentinel

    @property
    def master_port(self) -> int:
        reply = self.sentinel.call("SENTINEL", "get-master-addr-by-name", "shop")
        assert isinstance(reply, list)
        return int(reply[1])

    def fail_over(self) -> None:
        """Let the replica take over once it is in step, and wait until the old master follows it."""
        before = self.master_port
        new = next(server for server in self.servers if server.port != before)
        old = next(server for server in self.servers if server.port == before)
        wait_until(lambda: b"master_link_status:up" in bytes(new.call("INFO", "replication")))

        def accepted() -> bool:
            try:
                self.sentinel.call("SENTINEL", "FAILOVER", "shop")
            except OSError:
                return False  # it queries the state of the replica every 10 s only
            return True

        wait_until(accepted, interval_s=0.5)
        wait_until(lambda: self.master_port != before)

        def follows() -> bool:
            try:
                return b"role:slave" in bytes(old.call("INFO", "replication"))
            except OSError:
                return False  # it closes its clients' connections when it becomes a replica

        wait_until(follows)


@pytest.fixture
async def watched(private_redis: Callable[..., RedisServer]) -> AsyncIterator[Watched]:
    master = private_redis(extra_args=("--repl-diskless-sync-delay", "0"))
    replica = private_redis(extra_args=("--repl-diskless-sync-delay", "0"))
    replica.call("REPLICAOF", master.host, str(master.port))
    with Sentinel(master) as sentinel:
        watched = Watched([master, replica], sentinel)
        wait_until(lambda: len(sentinel.call("SENTINEL", "REPLICAS", "shop") or ()) == 1)
        yield watched


async def test_processor_scheduler_and_queue_go_on_after_fail_overs(watched: Watched) -> None:
    address = [("127.0.0.1", watched.sentinel.port)]
    sentinels: tuple[Any, Any] = (
        redis.asyncio.sentinel.Sentinel(address),  # type: ignore[no-untyped-call]
        redis.sentinel.Sentinel(address),  # type: ignore[no-untyped-call]
    )
    client, sync = (sentinel.master_for("shop") for sentinel in sentinels)
    done: set[str] = set()
    confirmed: set[str] = set()
    settings = ProcessorSettings(retention=None, replicas=1, settle_attempts=100)
    processor = Processor(client, ["orders"], concurrency=4, settings=settings, runtime=RUNTIME)

    @processor.handler("sell", retry=RetryPolicy.fixed(0.05, max_attempts=20))
    async def sell(ctx: JobContext) -> None:
        if ctx.attempt == 1:
            raise LookupError
        done.add(ctx.id)

    async def emit(name: str) -> None:
        with contextlib.suppress(QueueError):
            await processor.emit("sell", id=name)
            confirmed.add(name)

    host = Scheduler(client, [ScheduleEntry("beat", Every(1), "beat", "ticks")], group="hosts")
    ticking = asyncio.create_task(host.start())
    async with processor:
        for round_number in range(FAILOVERS):
            for number in range(10):
                await emit(f"{round_number}-{number}")
            await asyncio.to_thread(watched.fail_over)

            async def emitted(name: str = f"{round_number}-after") -> bool:
                await emit(name)
                return name in confirmed

            await wait_until_async(emitted)
        await wait_until_async(lambda: confirmed <= done)
    ticks_before = sync.xlen("ticks")
    await wait_until_async(lambda: sync.xlen("ticks") > ticks_before)
    host.stop()
    await ticking
    await host.close()
    with RedisStreamsQueue(sync, QueueConfig("queue", "billing", "alice")) as queue:
        queue.enqueue({"n": 1}, replicas=1, replicas_timeout_s=5.0)
        await asyncio.to_thread(watched.fail_over)

        def read() -> list[int]:
            with contextlib.suppress(QueueError):
                return [message.payload["n"] for message in (*queue.recover_own(), *queue.read(100))]
            return []

        found = await asyncio.to_thread(wait_until, read, timeout_s=60)
    ids = [json.loads(fields[b"data"])["id"] for _, fields in sync.xrange("ticks")]
    await client.aclose()
    sync.close()
    await sentinels[0].sentinels[0].aclose()
    sentinels[1].sentinels[0].close()

    assert len(confirmed) >= FAILOVERS
    assert found == [1]
    assert len(set(ids)) == len(ids)
