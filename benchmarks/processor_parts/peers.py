"""The peers, each as its own documentation sets it up, with the settings that make it fastest here.

Every function fills its queue (``filling``, and says how fast that was) or works it off. ``mode`` says how:

    plain   a no-op
    retry   every job fails once and is tried again by the library's own means, at once or after 50 ms
    due     every job was enqueued for one moment, which has come when the worker starts
"""

# ruff: noqa: ARG001 - handlers take what libraries hand them

import asyncio
import importlib
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from processor_parts.common import Clock, leave, say

SOON = timedelta(milliseconds=50)


def peer(module: str) -> Any:
    """Import what is not in the lock file."""
    return importlib.import_module(module)


class Work:
    """One run of one peer: counts calls, and knows when to fail."""

    def __init__(self, n: int, mode: str) -> None:
        self.n, self.mode = n, mode
        self.finished = threading.Event()
        self.clock = Clock(2 * n if mode == "retry" else n, self.finished.set)
        # The filling ends before this: the slowest peer enqueues some 500 jobs a second.
        self.at = datetime.now(UTC) + timedelta(seconds=1 + n / 500)

    def fails(self, attempt: int) -> bool:
        """Count a call; true if it shall fail."""
        self.clock.tick()
        return self.mode == "retry" and attempt == 1

    async def end(self) -> None:
        while not self.finished.is_set():  # noqa: ASYNC110 - a thread may set it
            await asyncio.sleep(0.01)
        self.report()

    def report(self) -> None:
        self.clock.report(self.n)
        leave()

    async def filled(self, began: float) -> None:
        say(rate=self.n / (time.perf_counter() - began))
        if self.mode == "due":
            await asyncio.sleep(max(0.0, self.at.timestamp() - time.time()))


async def taskiq(url: str, n: int, mode: str, *, filling: bool) -> None:
    work = Work(n, mode)
    broker = peer("taskiq_redis").RedisStreamBroker(url, queue_name="s", xread_count=100)
    if mode == "retry":
        broker = broker.with_middlewares(peer("taskiq").SimpleRetryMiddleware())
    seen: set[int] = set()

    async def job(order: int) -> None:
        again = order in seen
        seen.add(order)
        if work.fails(2 if again else 1):
            raise ConnectionError

    task = broker.task(task_name="job", retry_on_error=mode == "retry", max_retries=2)(job)
    await broker.startup()
    if filling:
        began = time.perf_counter()
        for number in range(n):
            await task.kiq(number)
        await work.filled(began)
        await broker.shutdown()
        return
    receiver = asyncio.create_task(peer("taskiq.api").run_receiver_task(broker, max_async_tasks=100))
    await work.end()
    await receiver


async def dramatiq(url: str, n: int, mode: str, *, filling: bool) -> None:
    work = Work(n, mode)
    library = peer("dramatiq")
    broker = peer("dramatiq.brokers.redis").RedisBroker(url=url)
    library.set_broker(broker)
    current = peer("dramatiq.middleware").CurrentMessage
    broker.add_middleware(current())

    def job(order: int) -> None:
        message = current.get_current_message()
        if work.fails(message.options.get("retries", 0) + 1):
            raise ConnectionError

    actor = library.actor(queue_name="s", max_retries=1, min_backoff=50, max_backoff=50)(job)
    if filling:
        began = time.perf_counter()
        for number in range(n):
            actor.send(number)
        await work.filled(began)
        return
    library.Worker(broker, worker_threads=8).start()
    await work.end()


async def arq(url: str, n: int, mode: str, *, filling: bool) -> None:
    work = Work(n, mode)
    library = peer("arq")
    where = peer("arq.connections").RedisSettings.from_dsn(url)
    if filling:
        pool = await library.create_pool(where)
        began = time.perf_counter()
        for number in range(n):
            await pool.enqueue_job("job", number, _defer_until=work.at if mode == "due" else None)
        await work.filled(began)
        await pool.aclose()
        return

    async def job(ctx: Any, order: int) -> None:
        if work.fails(ctx["job_try"]):
            raise library.Retry(defer=SOON)

    worker = peer("arq.worker").Worker(
        [library.func(job, name="job")],
        redis_settings=where,
        max_jobs=100,
        poll_delay=0.01,
        handle_signals=False,
    )
    running = asyncio.create_task(worker.async_run())
    await work.end()
    await running


async def streaq(url: str, n: int, mode: str, *, filling: bool) -> None:
    work = Work(n, mode)
    library = peer("streaq")
    worker = library.Worker(redis_url=url, concurrency=100, handle_signals=False)
    seen: set[int] = set()

    async def job(order: int) -> None:
        again = order in seen
        seen.add(order)
        if work.fails(2 if again else 1):
            raise library.StreaqRetry(delay=SOON)

    task = worker.task(name="job", silent=True)(job)
    if filling:
        async with worker:
            began = time.perf_counter()
            for start in range(0, n, 500):
                many = [task.enqueue(number) for number in range(start, min(start + 500, n))]
                if mode == "due":
                    many = [one.start(schedule=work.at) for one in many]
                await worker.enqueue_many(many)
            await work.filled(began)
        return
    running = asyncio.create_task(worker.run_async())
    await work.end()
    await running


async def saq(url: str, n: int, mode: str, *, filling: bool) -> None:
    work = Work(n, mode)
    library = peer("saq")
    queue = library.Queue.from_url(url)
    await queue.connect()
    if filling:
        options = {"scheduled": int(work.at.timestamp())} if mode == "due" else {"retries": 2}
        began = time.perf_counter()
        for number in range(n):
            await queue.enqueue("job", order=number, **options)
        await work.filled(began)
        await queue.disconnect()
        return

    async def job(ctx: Any, *, order: int) -> None:
        if work.fails(ctx["job"].attempts):
            raise ConnectionError

    running = asyncio.create_task(library.Worker(queue, functions=[("job", job)], concurrency=100).start())
    await work.end()
    await running


async def docket(url: str, n: int, mode: str, *, filling: bool) -> None:
    work = Work(n, mode)
    library = peer("docket")

    async def plain(order: int) -> None:
        work.fails(1)

    once_more = library.Retry(attempts=2, delay=SOON)

    async def flaky(order: int, retry: Any = once_more) -> None:
        if work.fails(retry.attempt):
            raise ConnectionError

    job = flaky if mode == "retry" else plain
    async with library.Docket(name="s", url=url) as place:
        place.register(job)
        if filling:
            began = time.perf_counter()
            for number in range(n):
                await place.add(job, when=work.at if mode == "due" else None)(number)
            await work.filled(began)
            return
        async with library.Worker(place, concurrency=50) as worker:
            running = asyncio.create_task(worker.run_forever())
            await work.end()
            await running


def celery(url: str, n: int, mode: str, *, filling: bool) -> None:
    work = Work(n, mode)
    app = peer("celery").Celery("bench", broker=url)
    app.conf.update(
        task_acks_late=True,
        worker_prefetch_multiplier=100,
        task_ignore_result=True,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=True,
    )

    def job(self: Any, order: int) -> None:
        if work.fails(self.request.retries + 1):
            raise self.retry(countdown=SOON.total_seconds(), max_retries=1)
        if work.finished.is_set():
            work.report()

    task = app.task(name="job", bind=True)(job)
    if filling:
        began = time.perf_counter()
        for number in range(n):
            task.delay(number)
        say(rate=n / (time.perf_counter() - began))
        return
    app.worker_main(["worker", "-P", "solo", "-l", "CRITICAL", "--without-gossip", "--without-mingle"])


async def chasquimq(url: str, n: int, mode: str, *, filling: bool) -> None:  # needs Redis 8.6
    work = Work(n, mode)
    library = peer("chasquimq")
    if filling:
        async with library.Queue("s", redis_url=url) as queue:
            began = time.perf_counter()
            for start in range(0, n, 500):
                numbers = range(start, min(start + 500, n))
                await queue.add_bulk([{"name": "job", "data": {"order": number}} for number in numbers])
            await work.filled(began)
        leave()  # its threads abort a Python that ends in the usual way, now and then

    async def job(one: Any) -> None:
        work.fails(one.attempt)

    running = asyncio.create_task(library.Worker("s", job, redis_url=url, concurrency=100).run())
    await work.end()
    await running


PEERS: dict[str, tuple[Callable[..., Any], str, tuple[str, ...]]] = {
    # name: (function, module it needs, what else than plain it can do with a set on the server)
    # docket at c100 runs into the limit of its own connection pool and hangs.
    "taskiq, c100": (taskiq, "taskiq_redis", ("retry",)),
    "dramatiq, 8 threads": (dramatiq, "dramatiq", ("retry",)),
    "Celery, solo": (celery, "celery", ("retry",)),
    "SAQ, c100": (saq, "saq", ("retry", "due")),
    "docket, c50": (docket, "docket", ("retry", "due")),
    "streaq, c100": (streaq, "streaq", ("retry", "due")),
    "chasquimq, c100": (chasquimq, "chasquimq", ()),
    "arq, c100": (arq, "arq", ("retry", "due")),
}


def quiet() -> None:
    """Otherwise a line per failed job would be measured."""
    logging.disable(logging.CRITICAL)
