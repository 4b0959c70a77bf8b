"""Every kind of worker, on real servers behind proxies, with a handler that a test can hold and release."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import pika
import pytest
import redis
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from sqlalchemy.pool import StaticPool

from conquiet import App, AppSettings, QueueConfig, QueueConsumer, QueueWorker, RuntimeSettings
from conquiet.app.database_check import DatabaseCheck
from conquiet.app.worker_group import WorkerGroup
from conquiet.core.functions import is_coroutine_function
from conquiet.processor import PartitionedProcessor, Processor
from conquiet.processor.partitions import partition_name
from conquiet.rabbit import RabbitConsumer
from conquiet.runtime import Consumer
from conquiet.scheduler import Every, ScheduleEntry, Scheduler
from conquiet.testing import FaultProxy, wait_until_async
from conquiet.transactional import DatabaseRetention, Inbox, OutboxRelay, Purger, ToStream, create_tables

Proxies = Callable[[str], FaultProxy]


RUNTIME = RuntimeSettings(claim_idle_ms=600_000)
"""No timeout for a silent Redis is shorter than 10 s then."""


@dataclass
class Hold:
    """A handler that begins, and ends when it is released."""

    begun: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    ended: list[str] = field(default_factory=list)
    instead: Callable[[], Any] | None = None

    async def run(self, *_: Any) -> bool:
        self.begun.set()
        if self.instead is not None:
            await self.instead()
        else:
            while not self.released.is_set():  # noqa: ASYNC110 - other tests release a thread
                await asyncio.sleep(0.01)
        self.ended.append("async")
        return True

    def run_in_thread(self, *_: Any) -> None:
        self.begun.set()
        if self.instead is not None:
            self.instead()
        else:
            assert self.released.wait(60)
        self.ended.append("thread")


@dataclass
class Subject:
    """A worker, the proxies in front of its servers, and its handler if it has one.

    Attributes:
        feed: Adds one message.
        left: Counts messages that are not acknowledged.
        polled: The servers that the worker polls, each with a part of the request that waits for a reply. A request
            that opens a connection does not count: it has a separate timeout.
    """

    worker: Any
    proxies: list[FaultProxy]
    hold: Hold
    feed: Callable[[], object] = lambda: None
    left: Callable[[], int] = lambda: 0
    polled: dict[FaultProxy, bytes | None] = field(default_factory=dict)

    @property
    def is_async(self) -> bool:
        return is_coroutine_function(self.worker.run)

    def start(self) -> "asyncio.Task[Any]":
        running = self.worker.run() if self.is_async else asyncio.to_thread(self.worker.run)
        return asyncio.create_task(running)

    async def close(self) -> None:
        await (self.worker.close() if self.is_async else asyncio.to_thread(self.worker.close))

    async def stall(self) -> None:
        """Stop all replies. Return when a request to each polled server waits."""
        for proxy, request in self.polled.items():
            await asyncio.to_thread(proxy.stall_next_reply, request)
            await asyncio.to_thread(proxy.wait_for_fault)
        for proxy in self.proxies:
            await asyncio.to_thread(proxy.stall)

    async def until_ready(self) -> None:
        await wait_until_async(lambda: self.worker.health().ready, message="it is ready")

    async def start_handling(self) -> "asyncio.Task[Any]":
        """Start the worker, and return once its handler holds a message."""
        running = self.start()
        await self.until_ready()
        await asyncio.to_thread(self.feed)
        await wait_until_async(self.hold.begun.is_set)
        return running


class Makers:
    """Makes each kind of worker."""

    def __init__(self, request: pytest.FixtureRequest, proxies: Proxies, stack: ExitStack) -> None:
        self._request = request
        self._proxies = proxies
        self._stack = stack
        self.hold = Hold()

    def _behind(self, fixture: str) -> tuple[str, FaultProxy]:
        url = self._request.getfixturevalue(fixture)
        proxy = self._proxies(url)
        return proxy.url_for(url), proxy

    def _redis(self) -> tuple[Any, redis.Redis, FaultProxy, str]:
        """Return a client behind a proxy, a direct client, the proxy, and a name for a stream."""
        url, proxy = self._behind("redis_url")
        client, direct = redis.Redis.from_url(url), redis.Redis.from_url(self._request.getfixturevalue("redis_url"))
        self._stack.callback(client.close)
        self._stack.callback(direct.close)
        return client, direct, proxy, self._request.getfixturevalue("key_prefix") + "s"

    def database(self, fixture: str) -> tuple[Engine, FaultProxy]:
        url, proxy = self._behind(fixture)
        direct = create_engine(self._request.getfixturevalue(fixture))
        create_tables(direct)
        direct.dispose()
        engine = create_engine(url)
        self._stack.callback(engine.dispose)
        return engine, proxy

    def _of_stream(self, worker: Any, direct: redis.Redis, proxy: FaultProxy, stream: str, group: str) -> Subject:
        def left() -> int:
            summary: Any = direct.xpending(stream, group)
            return int(summary["pending"])

        return Subject(worker, [proxy], self.hold, lambda: direct.xadd(stream, {"data": "{}"}), left)

    def consumer(self) -> Subject:
        client, direct, proxy, stream = self._redis()
        worker = Consumer(redis=client, streams=[stream], handler=self.hold.run, settings=RUNTIME)
        return self._of_stream(worker, direct, proxy, stream, "processor")

    def processor(self) -> Subject:
        client, direct, proxy, stream = self._redis()
        worker = Processor(client, [stream], runtime=RUNTIME)
        worker.handler("pay")(self.hold.run)
        made = self._of_stream(worker, direct, proxy, stream, "processor")
        made.feed = lambda: direct.xadd(stream, {"data": '{"v": 1, "event": "pay", "id": "a"}'})
        return made

    def partitioned(self) -> Subject:
        client, direct, proxy, stream = self._redis()
        worker = PartitionedProcessor(client, stream, partitions=2, runtime=RUNTIME)
        worker.handler("pay")(self.hold.run)
        first = partition_name(stream, 0)
        made = self._of_stream(worker, direct, proxy, first, "processor")
        made.feed = lambda: direct.xadd(first, {"data": '{"v": 1, "event": "pay", "id": "a"}'})
        return made

    def scheduler(self) -> Subject:
        client, _, proxy, stream = self._redis()
        entry = ScheduleEntry("tick", when=Every(86_400), stream=stream, event="pay")
        worker = Scheduler(client, [entry], group=stream, poll_s=0.05)
        return Subject(worker, [proxy], self.hold, polled={proxy: None})

    def queue_worker(self) -> Subject:
        client, direct, proxy, stream = self._redis()
        consumer = QueueConsumer(client, QueueConfig(stream, "g", "a"))
        engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
        self._stack.callback(engine.dispose)
        worker = QueueWorker(consumer, handler=self.hold.run_in_thread, engine=engine)
        return self._of_stream(worker, direct, proxy, stream, "g")

    def rabbit(self) -> Subject:
        url, proxy = self._behind("amqp_url")
        direct = pika.BlockingConnection(pika.URLParameters(self._request.getfixturevalue("amqp_url")))
        self._stack.callback(close_quietly, direct)
        channel = direct.channel()
        channel.queue_declare("work", durable=True)

        def left() -> int:
            return int(channel.queue_declare("work", passive=True).method.message_count)

        worker = RabbitConsumer(url, "work", self.hold.run, dead_letter=True)
        return Subject(worker, [proxy], self.hold, lambda: channel.basic_publish("", "work", b"{}"), left)

    def relay(self, fixture: str = "postgres_url") -> Subject:
        engine, proxy = self.database(fixture)
        client, _, _, stream = self._redis()
        worker = OutboxRelay(engine, {"s": ToStream(client, stream)}, poll_s=0.01)
        return Subject(worker, [proxy], self.hold, polled={proxy: b"SELECT"})

    def purger(self, fixture: str = "postgres_url") -> Subject:
        engine, proxy = self.database(fixture)
        worker = Purger(engine, inbox=Inbox(), retention=DatabaseRetention(interval_s=0.01))
        return Subject(worker, [proxy], self.hold, polled={proxy: b"DELETE"})

    def probe(self) -> Subject:
        engine, proxy = self.database("postgres_url")
        return Subject(DatabaseCheck(engine, interval_s=0.01), [proxy], self.hold, polled={proxy: None})

    def group(self) -> Subject:
        consumer, relay, purger = self.consumer(), self.relay(), self.purger()
        worker = WorkerGroup([consumer.worker, relay.worker], background=[purger.worker])
        polled = {**relay.polled, **purger.polled}
        return Subject(worker, [*consumer.proxies, *polled], self.hold, consumer.feed, consumer.left, polled)

    def app(self) -> Subject:
        client, direct, proxy, stream = self._redis()
        engine, database = self.database("postgres_url")
        worker = App(stream, redis=client, database=engine, settings=AppSettings(runtime=RUNTIME))
        hold = self.hold

        @worker.handler("pay")
        async def pay() -> None:
            await hold.run()

        made = self._of_stream(worker, direct, proxy, stream, stream)
        made.proxies.append(database)
        made.polled[database] = b"SELECT"
        made.feed = lambda: direct.xadd(stream, {"data": '{"v": 1, "event": "pay", "id": "a"}'})
        return made


def close_quietly(connection: Any) -> None:
    """Close a connection. Its vhost may be deleted already."""
    with suppress(pika.exceptions.AMQPError):
        connection.close()


RABBIT = pytest.param("rabbit", marks=pytest.mark.xdist_group("rabbitmq"))
WITH_HANDLERS = ["consumer", "processor", "partitioned", RABBIT, "group", "app"]
ALL = [*WITH_HANDLERS, "scheduler", "queue_worker", "relay", "purger", "probe"]


@pytest.fixture
def makers(request: pytest.FixtureRequest, fault_proxy: Proxies) -> Iterator[Makers]:
    with ExitStack() as stack:
        made = Makers(request, fault_proxy, stack)
        yield made
        made.hold.released.set()


@pytest.fixture
def subject(makers: Makers, request: pytest.FixtureRequest) -> Subject:
    made: Subject = getattr(makers, request.param)()
    return made
