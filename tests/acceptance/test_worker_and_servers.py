"""``conquiet worker`` and what it depends on: servers that come late, handlers that do not end, blocking workers."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from conquiet.testing import RedisServer, wait_until

LATE = """
import os
from redis.asyncio import Redis
from conquiet.processor import Processor
from conquiet.rabbit import RabbitConsumer
from conquiet.runtime import Consumer
from conquiet.scheduler import Every, ScheduleEntry, Scheduler

async def handle(message, ctx):
    pass

def client():
    return Redis.from_url(os.environ["CONQUIET_REDIS_URL"])

def consumer():
    return Consumer(streams=["orders"], redis=client(), handler=handle)

def processor():
    made = Processor(client(), ["events"])
    made.handler("created")(lambda ctx: None)
    return made

def scheduler():
    return Scheduler(client(), [ScheduleEntry("often", Every(1), "fired", "events")])

def rabbit():
    return RabbitConsumer(os.environ["CONQUIET_REDIS_URL"].replace("redis:", "amqp:"), "work", lambda message: True)

def at_its_call():
    import redis
    redis.Redis.from_url(os.environ["CONQUIET_REDIS_URL"]).ping()
    return consumer()
"""

ENDLESS = """
import asyncio, os
from redis.asyncio import Redis
from conquiet.runtime import Consumer

async def handle(message, ctx):
    await done.rpush(os.environ["DONE_KEY"], "begun")
    while True:
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0)

done = Redis.from_url(os.environ["CONQUIET_REDIS_URL"])
client = Redis.from_url(os.environ["CONQUIET_REDIS_URL"])
consumer = Consumer(streams=[os.environ["STREAM"]], redis=client, handler=handle, block_ms=200, grace_s=0.3)
"""

QUEUE_WORKER = """
import os
from redis import Redis
from sqlalchemy import create_engine
from conquiet.transactional import Inbox, create_tables
from conquiet.config import QueueConfig
from conquiet.queue import QueueConsumer, QueueWorker

client = Redis.from_url(os.environ["CONQUIET_REDIS_URL"])
engine = create_engine("sqlite:///shop.db")

def handle(message, session):
    client.rpush(os.environ["DONE_KEY"], message.payload["n"])

consumer = QueueConsumer(client, QueueConfig(os.environ["STREAM"], "billing", "worker-1"))
worker = QueueWorker(consumer, handler=handle, engine=engine)
"""


class Started:
    """A worker under test, with its log."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_for_log(self, sign: str) -> None:
        def is_done() -> bool:
            assert self.process.poll() is None or sign in self.log, self.log
            return sign in self.log

        wait_until(is_done, timeout_s=180, message=lambda: self.log)


@pytest.fixture
def start(
    command: Path, clean_environment: Callable[..., dict[str, str]], tmp_path: Path, key_prefix: str
) -> Iterator[Callable[..., Started]]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(url: str, module: str, target: str, *words: str) -> Started:
        (tmp_path / "shop.py").write_text(module)
        log = tmp_path / "log"
        with log.open("w") as file:
            process = subprocess.Popen(
                [command, "worker", f"shop:{target}", *words],
                env=clean_environment(
                    CONQUIET_REDIS_URL=url, STREAM=f"{key_prefix}orders", DONE_KEY=f"{key_prefix}done"
                ),
                cwd=tmp_path, stdout=file, stderr=file,
            )  # fmt: skip
        started.append(process)
        return Started(process, log)

    yield begin
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("target", ["consumer", "processor", "scheduler", "at_its_call"])
def test_a_worker_waits_for_a_redis_that_comes_late(
    start: Callable[..., Started], private_redis: Callable[..., RedisServer], target: str
) -> None:
    server = private_redis()
    server.kill()
    worker = start(server.url, LATE, target, "--wait-s", "120")
    address = f"Redis at 127.0.0.1:{server.port}"
    worker.wait_for_log(f"{address} cannot be reached; waiting up to 120 s")

    server.restart()

    worker.wait_for_log("1 processes ready")
    assert worker.log.count("cannot be reached") == 1, "said once"
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait() == 0, worker.log
    assert "Traceback" not in worker.log


@pytest.mark.parametrize(("target", "name"), [("consumer", "Redis at "), ("rabbit", "RabbitMQ at amqp://")])
def test_a_server_that_never_comes_ends_the_worker_with_its_address(
    start: Callable[..., Started], closed_port: int, target: str, name: str
) -> None:
    worker = start(f"redis://127.0.0.1:{closed_port}", LATE, target, "--wait-s", "1.5", "--processes", "2")

    assert worker.process.wait() == 2, worker.log
    assert f"{name}127.0.0.1:{closed_port}" in worker.log
    assert worker.log.count("cannot be reached; waiting up to 1.5 s") == 1
    assert "could not be reached within 1.5 s: giving up" in worker.log
    assert "Traceback" not in worker.log


def test_a_signal_ends_the_wait_at_once(start: Callable[..., Started], closed_port: int) -> None:
    worker = start(f"redis://127.0.0.1:{closed_port}", LATE, "consumer", "--wait-s", "3600")
    worker.wait_for_log("waiting up to 3600 s")

    worker.process.send_signal(signal.SIGTERM)

    worker.process.wait(60)
    assert "did not end within" not in worker.log


def test_handlers_that_were_abandoned_are_no_good_end(
    start: Callable[..., Started], client: Redis, redis_url: str, key_prefix: str
) -> None:
    """Their messages will be delivered again: an operator who reads 0 thinks that all is done."""
    client.xadd(f"{key_prefix}orders", {"data": json.dumps({"n": 1})})
    worker = start(redis_url, ENDLESS, "consumer")
    wait_until(lambda: client.llen(f"{key_prefix}done") == 1, message=lambda: worker.log)

    worker.process.send_signal(signal.SIGTERM)

    assert worker.process.wait() == 1, worker.log
    assert "1 handlers did not end within the grace period and were abandoned" in worker.log
    assert "some processes did not end in order" in worker.log
    pending: Any = client.xpending(f"{key_prefix}orders", "processor")
    assert pending["pending"] == 1


def test_a_queue_worker_is_run_becomes_ready_and_drains(
    start: Callable[..., Started], client: Redis, redis_url: str, key_prefix: str
) -> None:
    for number in range(5):
        client.xadd(f"{key_prefix}orders", {"data": json.dumps({"n": number})})
    worker = start(redis_url, QUEUE_WORKER, "worker")

    worker.wait_for_log("1 processes ready")
    wait_until(lambda: client.llen(f"{key_prefix}done") == 5, message=lambda: worker.log)
    worker.process.send_signal(signal.SIGTERM)

    assert worker.process.wait() == 0, worker.log
    pending: Any = client.xpending(f"{key_prefix}orders", "billing")
    assert pending["pending"] == 0


# ---------------------------------------------------------------- commands without a server
@pytest.mark.parametrize(
    "words",
    [
        ("inspect",),
        ("pending", "orders", "billing"),
        ("reclaim", "orders", "billing", "--dead-owners"),
        ("remove-consumer", "orders", "billing", "alice"),
        ("trim", "orders"),
        ("enqueue", "orders", "{}"),
        ("emit", "created", "{}", "--stream", "orders"),
        ("pause", "orders"),
        ("resume", "orders"),
        ("doctor",),
        ("dead-letters", "list", "orders"),
        ("dead-letters", "causes", "orders"),
        ("dead-letters", "show", "orders", "1-0"),
        ("dead-letters", "replay", "orders", "--all"),
        ("dead-letters", "discard", "orders", "--all"),
        ("schedule", "list"),
        ("schedule", "next"),
        ("schedule", "pause", "x"),
        ("schedule", "resume", "x"),
        ("schedule", "remove", "x"),
    ],
    ids=" ".join,
)
def test_a_redis_that_is_not_running_is_one_sentence_with_its_address(
    invoke: Callable[..., Any], closed_port: int, words: tuple[str, ...]
) -> None:
    done = invoke(*words, env={"CONQUIET_REDIS_URL": f"redis://:geheim@127.0.0.1:{closed_port}/0"})

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == f"conquiet: Redis at redis://***@127.0.0.1:{closed_port}/0 does not answer"
    assert len(done.stderr.splitlines()) == 2
    assert "in_doubt" not in done.stderr
