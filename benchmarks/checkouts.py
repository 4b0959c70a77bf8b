"""Two checkouts of conquiet in turns, in one run: processor time per message of the older and of this one.

    git worktree add ../old eedd41b
    python benchmarks/checkouts.py ../old [--quick] [--only runtime|rabbit]

Every turn is a process of its own with this interpreter and the ``src`` of one checkout first on its path. The figure
is the processor time (``time.process_time``) from the first to the last message, in microseconds per message: unlike
the wall clock it grows little with the load of the machine. A ratio is the median over rounds of old / new, so 0.95
means that this checkout needs 5 % more; "best" compares the fastest turn of each, which other programs
disturb least. Servers are private; those of the cases that are not run are not started.
"""

import argparse
import asyncio
import gc
import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAYLOAD = {"order": 12345, "amount": 19.99, "currency": "EUR", "note": "bench"}
ENVELOPE = (
    b'{"v":1,"event":"work","id":"%d","attempt":1,"emitted_ms":1763244000000,"data":{"order":12345,"amount":19.99}}'
)


class Meter:
    """Takes the processor time from the first to the last of n calls."""

    def __init__(self, n: int, done: Callable[[], object] = lambda: None) -> None:
        self.n, self.seen, self.done = n, 0, done
        self.began = self.spent = 0.0

    def tick(self) -> None:
        if self.seen == 0:
            gc.collect()  # what the imports have left, which would else fall into one turn or another
            gc.freeze()
            self.began = time.process_time()
        self.seen += 1
        if self.seen == self.n:
            self.spent = time.process_time() - self.began
            self.done()

    def report(self) -> None:
        print(json.dumps({"us": self.spent / (self.n - 1) * 1e6}))


class HandlerError(Exception):
    """Raised by a handler that fails."""


# ---------------------------------------------------------------- one turn; runs with either checkout
async def runtime(url: str, n: int, kind: str) -> None:
    import redis.asyncio

    from conquiet.runtime import Consumer

    client = redis.asyncio.Redis.from_url(url)
    meter = Meter(n)

    async def noop(_: Any, __: Any) -> None:
        meter.tick()

    async def suspending(_: Any, __: Any) -> None:
        await asyncio.sleep(0)
        meter.tick()

    async def failing(_: Any, __: Any) -> None:
        meter.tick()
        raise HandlerError

    handler = {"no-op": noop, "suspending": suspending}.get(kind, failing)
    engine = Consumer(streams=["s"], redis=client, handler=handler, concurrency=100)
    meter.done = engine.stop
    await engine.start()
    meter.report()
    await client.aclose()


async def processor(url: str, n: int, kind: str) -> None:
    import redis.asyncio

    from conquiet.processor import Processor, RetryPolicy

    client = redis.asyncio.Redis.from_url(url)
    ours = Processor(client, ["s"], concurrency=100)
    meter = Meter(n, ours.stop)

    @ours.handler("work", retry=RetryPolicy.fixed(60.0, max_attempts=1 if kind == "dead-lettered" else 2))
    async def work(_: Any) -> None:
        if kind == "suspending":
            await asyncio.sleep(0)
        meter.tick()
        if kind in {"retried", "dead-lettered"}:
            raise HandlerError

    await ours.start()
    meter.report()
    await ours.close()
    await client.aclose()


def queue(url: str, n: int, kind: str) -> None:
    import redis

    from conquiet import QueueConfig, QueueConsumer

    config = QueueConfig(stream_key="s", consumer_group="processor", consumer_name="c")
    meter = Meter(n)
    with redis.Redis.from_url(url) as client, QueueConsumer(client, config) as consumer:
        if kind == "enqueue":
            for _ in range(n):
                consumer.queue.enqueue(PAYLOAD)
                meter.tick()
        else:
            while not meter.spent:
                message = consumer.next()
                assert message is not None
                consumer.ack(message)
                meter.tick()
    meter.report()


async def rabbit(url: str, n: int, kind: str) -> None:
    from conquiet.rabbit import RabbitConsumer, SchemaRegistry

    meter = Meter(n)

    async def noop(_: Any) -> bool:
        meter.tick()
        return True

    async def suspending(_: Any) -> bool:
        await asyncio.sleep(0)
        meter.tick()
        return True

    async def failing(_: Any) -> bool:
        meter.tick()
        return False

    syncer = {"no-op": noop, "suspending": suspending, "refused": failing}[kind]
    consumer = RabbitConsumer(
        url, "bench", syncer, schemas=SchemaRegistry(built_in=False).register_default(), concurrency=100
    )
    meter.done = consumer.stop
    await consumer.run()
    meter.report()


def db(url: str, n: int, kind: str) -> None:
    from sqlalchemy import create_engine

    from conquiet import DbConfig, DbOperation, DbOperationType, DbSession, DbWriter, LockStrategy

    engine = create_engine(url)
    meter = Meter(n)
    if kind == "session":
        for number in range(n):
            with DbSession(engine) as session:
                session.execute("INSERT INTO bench (id, value) VALUES (:id, :value)", {"id": number, "value": number})
            meter.tick()
    else:
        is_update = kind == "update under a lock"
        op = DbOperationType.UPDATE if is_update else DbOperationType.INSERT
        with DbWriter(engine, DbConfig("bench"), LockStrategy.ADVISORY) as writer:
            if is_update:
                writer.execute(DbOperation("bench", DbOperationType.INSERT, 1, {"id": 1, "value": -1}))
            for number in range(n):
                key = 1 if is_update else number
                writer.execute(
                    DbOperation("bench", op, key, {"value": number} if is_update else {"id": key, "value": 0})
                )
                meter.tick()
    engine.dispose()
    meter.report()


CASES: dict[str, tuple[Callable[[str, int, str], Any], list[str], int]] = {
    "runtime": (runtime, ["no-op", "suspending", "failing", "failing, logged"], 60_000),
    "processor": (processor, ["no-op", "suspending", "retried", "dead-lettered"], 60_000),
    "queue": (queue, ["enqueue", "consume"], 10_000),
    "rabbit": (rabbit, ["no-op", "suspending", "refused"], 20_000),
    "db": (db, ["session", "insert", "update under a lock"], 2_000),
}
"""Part -> what a turn runs, its kinds, and the messages of one turn."""


def perform(part: str, kind: str, url: str, n: int) -> None:
    """Run one turn in this process."""
    logging.getLogger("conquiet").setLevel(logging.WARNING if kind.endswith("logged") else logging.CRITICAL)
    run = CASES[part][0](url, n, kind)
    if isinstance(run, Coroutine):
        asyncio.run(run)


# ---------------------------------------------------------------- the referee
class Servers:
    """Starts a server when the first case needs it, and sets it up for each turn."""

    def __init__(self) -> None:
        self._open: dict[str, Any] = {}

    def prepare(self, part: str, kind: str, n: int) -> str:
        """Fill or empty the server of a part; return its URL."""
        if part == "rabbit":
            return self._rabbit(n)
        return self._database() if part == "db" else self._redis(part, kind, n)

    def close(self) -> None:
        for server in self._open.values():
            server.stop()

    def _start(self, name: str) -> Any:
        if name not in self._open:
            from conquiet import testing

            self._open[name] = getattr(testing, name)()
            self._open[name].start()
        return self._open[name]

    def _redis(self, part: str, kind: str, n: int) -> str:
        import redis

        server = self._start("RedisServer")
        with redis.Redis.from_url(server.url) as client:
            client.flushall()
            client.xgroup_create("s", "processor", "0", mkstream=True)
            pipe = client.pipeline(transaction=False)
            for number in range(0 if kind == "enqueue" else n):
                pipe.xadd("s", {"data": ENVELOPE % number if part == "processor" else json.dumps(PAYLOAD)})
                if number % 1_000 == 999:
                    pipe.execute()
            pipe.execute()
        return str(server.url)

    def _rabbit(self, n: int) -> str:
        import pika

        server = self._start("RabbitMQServer")
        with pika.BlockingConnection(pika.URLParameters(server.url)) as connection:
            channel = connection.channel()
            channel.queue_delete("bench")
            channel.exchange_declare("bench.dead", "fanout", durable=True)
            channel.queue_declare("bench.dead", durable=True, arguments={"x-max-length": 10})
            channel.queue_bind("bench.dead", "bench.dead")
            channel.queue_declare("bench", durable=True, arguments={"x-dead-letter-exchange": "bench.dead"})
            body = json.dumps(PAYLOAD).encode()
            for _ in range(n):
                channel.basic_publish("", "bench", body)
        return str(server.url)

    def _database(self) -> str:
        from sqlalchemy import create_engine, text

        server = self._start("MySQLServer")
        engine = create_engine(server.url)
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE IF EXISTS bench"))
            connection.execute(text("CREATE TABLE bench (id BIGINT PRIMARY KEY, value BIGINT)"))
        engine.dispose()
        return str(server.url)


def turn(checkout: Path, part: str, kind: str, url: str, n: int) -> float:
    """Return the microseconds per message of one turn."""
    done = subprocess.run(
        [sys.executable, __file__, "--turn", part, "--kind", kind, "--url", url, "--n", str(n)],
        env={**os.environ, "PYTHONPATH": str(checkout / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a failing handler is logged there
        text=True,
        timeout=300,
        check=True,
    )
    return float(json.loads(done.stdout.strip().splitlines()[-1])["us"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", type=Path, help="the other checkout")
    parser.add_argument("--quick", action="store_true", help="a quarter of the messages, three rounds")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--only", default="", help="parts or part:kind, divided by |")
    parser.add_argument("--turn", help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--n", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        perform(options.turn, options.kind, options.url, options.n)
        return
    if options.old is None:
        parser.error("name the other checkout")
    only = set(filter(None, options.only.split("|")))
    rounds = options.rounds or (3 if options.quick else 7)
    servers = Servers()
    columns = f"{'old µs':>9}{'new µs':>9}{'old/new':>9}{'best':>7}"
    print(f"{'processor time per message':<28}{columns}   (medians of {rounds} rounds)")
    try:
        for part, (_, kinds, messages) in CASES.items():
            for kind in kinds:
                if only and not only & {part, f"{part}:{kind}"}:
                    continue
                n = messages // 4 if options.quick else messages
                found: dict[Path, list[float]] = {options.old.resolve(): [], ROOT: []}
                for number in range(rounds):
                    order = list(found) if number % 2 == 0 else list(found)[::-1]
                    for checkout in order:
                        found[checkout].append(turn(checkout, part, kind, servers.prepare(part, kind, n), n))
                old, new = found.values()
                ratio = statistics.median(a / b for a, b in zip(old, new, strict=True))
                medians = f"{statistics.median(old):>9.2f}{statistics.median(new):>9.2f}"
                print(f"{f'{part} {kind}':<28}{medians}{ratio:>9.2f}{min(old) / min(new):>7.2f}", flush=True)
    finally:
        servers.close()


if __name__ == "__main__":
    main()
