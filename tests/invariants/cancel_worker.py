"""Workers for test_cancelled_or_done: a processor with an inbox, killed and stopped at random moments.

Not a test. Started once with everything imported; it forks a worker for each line it reads and prints its pid.

``bug`` plants a mistake that the test has to find.
"""

import asyncio
import functools
import inspect
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import redis.asyncio
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from tests.invariants import wire
from tests.invariants.preloading import preload
from tests.invariants.recorder import Recorder

from conquiet.core.backoff import Backoff
from conquiet.processor import JobContext, Processor, ProcessorSettings, RetryPolicy, SyncJobContext
from conquiet.processor.handler_runner import HandlerRunner
from conquiet.runtime.settings import RuntimeSettings
from conquiet.transactional import for_processor

SETTINGS: dict[str, Any] = json.loads(sys.argv[1])
CLAIM_IDLE_MS = 1_000
record = Recorder(SETTINGS["history"])
INSERT = text("INSERT INTO effect (job) VALUES (:job)")


async def pay_async(ctx: Any, session: Any) -> None:
    record("deliver", id=ctx.id)
    await asyncio.sleep(random.random() * 0.02)
    await session.execute(INSERT, {"job": ctx.id})
    await asyncio.sleep(random.random() * 0.02)


def pay_thread(ctx: Any, session: Any) -> None:
    record("deliver", id=ctx.id)
    time.sleep(random.random() * 0.02)
    session.execute("INSERT INTO effect (job) VALUES (:job)", {"job": ctx.id})
    time.sleep(random.random() * 0.02)
    if random.random() < 0.5:
        ctx.raise_if_cancelled()


def noting(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Record for each delivery, duplicates included, the message of its transaction."""
    if inspect.iscoroutinefunction(handler):

        @functools.wraps(handler)  # with its mark: the transaction decides whether a job is cancelled
        async def handle_async(ctx: JobContext) -> Any:
            wire.handle(ctx.id)
            return await handler(ctx)

        return handle_async

    @functools.wraps(handler)
    def handle(ctx: SyncJobContext) -> Any:
        wire.handle(ctx.id)
        return handler(ctx)

    return handle


async def work(name: str) -> None:
    url = SETTINGS["db"]
    settings = ProcessorSettings(retry=RetryPolicy.fixed(0.02, max_attempts=100), refresh_s=0.2)
    runtime = RuntimeSettings(claim_idle_ms=CLAIM_IDLE_MS, max_deliveries=None, outage=Backoff(base_s=0.05, cap_s=0.2))
    client = redis.asyncio.Redis.from_url(SETTINGS["redis"])
    processor = Processor(
        client, [SETTINGS["stream"]], concurrency=8, consumer_id=name, settings=settings, runtime=runtime
    )
    awaited = create_async_engine(url, pool_size=8, max_overflow=8)
    blocking = create_engine(url, pool_size=8, max_overflow=8)
    processor.handler("async")(noting(for_processor(pay_async, engine=awaited)))
    processor.handler("thread")(noting(for_processor(pay_thread, engine=blocking)))
    if SETTINGS["bug"] == "redis-decides":

        async def always(*_: object) -> bool:
            return True

        HandlerRunner.mark_cancelled = always  # type: ignore[assignment, method-assign]
    await processor.run()


def main() -> None:
    preload(SETTINGS["db"])
    preload(SETTINGS["db"], driver="asyncmy")
    children: list[int] = []
    for number, line in enumerate(sys.stdin):
        pid = os.fork()
        if pid == 0:
            try:
                random.seed(number)
                record.watch(CLAIM_IDLE_MS / 4_000)
                wire.note_commits(record)
                wire.note_stream_acks(record, lambda messages: [message.data["id"] for message in messages])
                asyncio.run(work(f"{line.strip()}-{number}"))
            except BaseException:  # noqa: BLE001 - the test has to know of it
                os.write(2, traceback.format_exc()[-2000:].encode())
            os._exit(1)
        children.append(pid)
        os.write(1, f"{pid}\n".encode())
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
