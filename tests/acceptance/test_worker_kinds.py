"""``conquiet worker`` with one of each kind that it can run, in one process, on real servers: each does its work."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from redis import Redis

from conquiet.testing import wait_until

KINDS = {"Consumer", "Processor", "Scheduler", "RabbitConsumer", "OutboxRelay"}
MODULE = """
import os
import redis, redis.asyncio
from sqlalchemy import create_engine
from conquiet.transactional import Outbox, OutboxRelay, ToStream, create_tables
from conquiet.db import DbSession
from conquiet.processor import Processor
from conquiet.rabbit import RabbitConsumer, SchemaRegistry
from conquiet.runtime import Consumer
from conquiet.scheduler import Every, ScheduleEntry, Scheduler

url, prefix = os.environ["CONQUIET_REDIS_URL"], os.environ["PREFIX"]
done = redis.Redis.from_url(url)
client = redis.asyncio.Redis.from_url(url)

def note(kind):
    done.sadd(f"{prefix}done", kind)

async def handle(message, ctx):
    note(message.data["kind"])

consumer = Consumer(streams=[f"{prefix}plain"], redis=client, handler=handle)
processor = Processor(client, [f"{prefix}events"])

@processor.handler("emitted")
async def emitted(ctx):
    note("Processor")

@processor.handler("fired")
async def fired(ctx):
    note("Scheduler")

scheduler = Scheduler(client, [ScheduleEntry("often", Every(1), "fired", f"{prefix}events")], group=f"{prefix}g")

async def sync(message):
    note("RabbitConsumer")
    return True

rabbit = RabbitConsumer(os.environ["CONQUIET_RABBIT_URL"], "work", sync,
                        schemas=SchemaRegistry(built_in=False).register_default())
engine = create_engine("sqlite:///outbox.db")
create_tables(engine)
with DbSession(engine) as session:
    Outbox().add(session, "plain", {"kind": "OutboxRelay"})
relay = OutboxRelay(engine, {"plain": ToStream(done, f"{prefix}plain")})
everything = [consumer, processor, scheduler, rabbit, relay]
"""


@pytest.mark.spec("CQ-001.7")
def test_one_of_each_kind_does_its_work_is_ready_and_ends_well(
    command: Path,
    clean_environment: Callable[..., dict[str, str]],
    tmp_path: Path,
    redis_url: str,
    amqp_url: str,
    key_prefix: str,
    client: Redis,
) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    connection.channel().queue_declare("work", durable=True)
    connection.channel().basic_publish("", "work", b"{}")
    client.xadd(f"{key_prefix}plain", {"data": json.dumps({"kind": "Consumer"})})
    client.xadd(f"{key_prefix}events", {"data": json.dumps({"v": 1, "event": "emitted", "id": "1", "data": {}})})
    (tmp_path / "shop.py").write_text(MODULE)
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [command, "worker", "shop:everything"],
            env=clean_environment(CONQUIET_REDIS_URL=redis_url, CONQUIET_RABBIT_URL=amqp_url, PREFIX=key_prefix),
            cwd=tmp_path,
            stdout=file,
            stderr=file,
        )

    def worked() -> bool:
        assert process.poll() is None, log.read_text()
        found: Any = client.smembers(f"{key_prefix}done")
        return bool(found == KINDS)

    try:
        wait_until(worked, timeout_s=120, message=log.read_text)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
        connection.close()
