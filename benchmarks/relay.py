"""The relay and the inbox on PostgreSQL and MariaDB, each with a hand-written loop, in one run.

    .venv/bin/python benchmarks/relay.py [--quick]

Contenders take turns in short rounds; figures are medians of rounds. Only the ratio to the hand-written loop of the
same database in the same run means anything: the two servers are tuned differently.
"""

import argparse
import itertools
import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import redis
from sqlalchemy import create_engine, make_url

from conquiet.config import QueueConfig
from conquiet.db.session import DbSession
from conquiet.queue import QueueConsumer, QueueMessage
from conquiet.testing.mysql import MySQLServer
from conquiet.testing.postgres import PostgresServer
from conquiet.testing.redis import RedisServer
from conquiet.transactional import Inbox, Outbox, OutboxMessage, OutboxRelay, PublishOutcome, ToStream, create_tables

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

ORDER = {"account": 1, "cents": 5, "note": "a payload of about sixty bytes"}
BATCH, KEYS = 200, 50


class World:
    def __init__(self, database: MySQLServer | PostgresServer, broker: RedisServer) -> None:
        self.name = database.name
        self.url = database.url
        self.engine: Engine = create_engine(database.url)
        self.client = redis.Redis.from_url(broker.url)
        self.stream = f"ledger-{self.name}"
        self.numbers = itertools.count()
        self.is_postgres = isinstance(database, PostgresServer)
        self.now = "now()" if self.is_postgres else "UTC_TIMESTAMP(6)"
        create_tables(self.engine)
        with DbSession(self.engine) as session:
            session.execute("CREATE TABLE effect (cents INT)")

    def raw_database(self) -> Any:
        url = make_url(self.url)
        if self.is_postgres:
            return psycopg.connect(host=url.host, port=url.port, user=url.username, dbname=url.database)
        return pymysql.connect(host=url.host, port=url.port or 3306, user=url.username or "", database=url.database)

    def fill_outbox(self, count: int, *, keys: int | None = None) -> None:
        outbox = Outbox()
        with DbSession(self.engine) as session:
            session.execute("TRUNCATE TABLE conquiet_outbox")
        with DbSession(self.engine) as session:
            for number in range(count):
                outbox.add(session, "ledger", ORDER, key=None if keys is None else str(number % keys))

    def close(self) -> None:
        self.engine.dispose()
        self.client.close()


def timed_relay(world: World, count: int, *, keys: int | None) -> float:
    world.fill_outbox(count, keys=keys)
    with (
        ToStream(world.client, world.stream) as target,
        OutboxRelay(world.engine, {"ledger": target}, batch=BATCH) as relay,
    ):
        relay.relay_once()  # opens the connection; a batch less to count
        started = time.perf_counter()
        done = relay.drain(timeout_s=120).published
        took = time.perf_counter() - started
    world.client.delete(world.stream)
    return done / took


def timed_hand_written(world: World, count: int) -> float:
    """SELECT … FOR UPDATE SKIP LOCKED, a pipeline of XADD, DELETE, COMMIT. No order, no parking, no ages."""
    world.fill_outbox(count)
    connection = world.raw_database()
    cursor = connection.cursor()
    done, started = 0, time.perf_counter()
    while True:
        cursor.execute(
            "SELECT seq, message_id, payload FROM conquiet_outbox WHERE target = 'ledger' AND parked = 0 "
            f"AND due_at <= {world.now} ORDER BY due_at, seq LIMIT {BATCH} FOR UPDATE SKIP LOCKED"
        )
        rows = cursor.fetchall()
        if not rows:
            break
        with world.client.pipeline() as pipe:
            for _, message_id, payload in rows:
                body = {**json.loads(payload), "_outbox_id": message_id.decode()}
                pipe.xadd(world.stream, {"data": json.dumps(body)})
            pipe.execute()
        cursor.execute(f"DELETE FROM conquiet_outbox WHERE seq IN ({','.join(str(row[0]) for row in rows)})")
        connection.commit()
        done += len(rows)
    took = time.perf_counter() - started
    connection.close()
    world.client.delete(world.stream)
    return done / took


def timed_run(world: World, count: int, inbox: Inbox | None) -> float:
    config = QueueConfig(f"orders-{world.name}-{next(world.numbers)}", "g", "c", block_ms=50)
    with QueueConsumer(world.client, config) as consumer:
        consumer.queue.enqueue_many([ORDER] * count)
        left = itertools.count(1)

        def handle(msg: QueueMessage, session: DbSession) -> None:
            session.execute("INSERT INTO effect (cents) VALUES (:cents)", {"cents": msg.payload["cents"]})
            if next(left) == count:
                consumer.stop()

        started = time.perf_counter()
        consumer.run(handler=handle, engine=world.engine, inbox=inbox)
        return count / (time.perf_counter() - started)


def timed_raw(world: World, count: int) -> float:
    """A careful hand-written loop: the driver, redis-py, an inbox row, one message at a time."""
    client, stream = world.client, f"raw-{world.name}-{next(world.numbers)}"
    client.xgroup_create(stream, "g", "0", mkstream=True)
    with client.pipeline() as pipe:
        for _ in range(count):
            pipe.xadd(stream, {"data": json.dumps(ORDER)})
        pipe.execute()
    connection = world.raw_database()
    cursor = connection.cursor()
    skip = " ON CONFLICT DO NOTHING" if world.is_postgres else ""
    started = time.perf_counter()
    for _ in range(count):
        reply: Any = client.xreadgroup("g", "c", {stream: ">"}, count=1)
        ((_, ((entry, fields),)),) = reply
        cursor.execute(
            "INSERT INTO conquiet_inbox (source, consumer_group, message_id, handled_at) "
            f"VALUES (%s, %s, %s, {world.now}){skip}",
            (stream.encode(), b"g", entry),
        )
        cursor.execute("INSERT INTO effect (cents) VALUES (%s)", (json.loads(fields[b"data"])["cents"],))
        connection.commit()
        client.xack(stream, "g", entry)
    rate = count / (time.perf_counter() - started)
    connection.close()
    return rate


class Clock:
    """A target that notes when a message arrives."""

    def __init__(self) -> None:
        self.arrived = threading.Event()

    def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
        self.arrived.set()
        return [(PublishOutcome.PUBLISHED, "")] * len(messages)


def latency_ms(world: World, count: int) -> float:
    """Median time from the end of a transaction to the publishing of its message, with the default pause of 0.2 s."""
    clock = Clock()
    found = []
    with OutboxRelay(world.engine, {"ledger": clock}) as relay:
        running = threading.Thread(target=relay.run)
        running.start()
        for number in range(count):
            time.sleep(0.05 + number % 7 / 50)
            clock.arrived.clear()
            with DbSession(world.engine) as session:
                Outbox().add(session, "ledger", ORDER)
            began = time.perf_counter()
            clock.arrived.wait(30)
            found.append((time.perf_counter() - began) * 1_000)
        relay.stop()
        running.join()
    return statistics.median(found)


def race(title: str, rounds: int, contenders: dict[str, tuple[Callable[[], float], str]]) -> None:
    """Print medians; each contender names the contender that it is compared with."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, (contender, _) in contenders.items():
            rates[name].append(contender())
    print(f"\n{title}")
    for name, (_, against) in contenders.items():
        rate = statistics.median(rates[name])
        ratio = statistics.median(one / base for one, base in zip(rates[name], rates[against], strict=True))
        print(f"  {name:<44} {rate:>8,.0f}/s   {ratio:5.2f} x {against}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    rounds, rows, messages = (3, 2_000, 200) if quick else (7, 5_000, 600)
    with MySQLServer() as mysql, PostgresServer() as postgres, RedisServer() as broker:
        worlds = [World(mysql, broker), World(postgres, broker)]
        relays: dict[str, tuple[Callable[[], float], str]] = {}
        runs: dict[str, tuple[Callable[[], float], str]] = {}
        for one in worlds:
            hand, raw = f"{one.name}: hand-written, no order", f"{one.name}: raw loop with an inbox row"
            relays[hand] = (lambda one=one: timed_hand_written(one, rows), hand)  # type: ignore[misc]
            relays[f"{one.name}: OutboxRelay, no keys"] = (lambda one=one: timed_relay(one, rows, keys=None), hand)  # type: ignore[misc]
            relays[f"{one.name}: OutboxRelay, {KEYS} keys in order"] = (
                lambda one=one: timed_relay(one, rows, keys=KEYS),  # type: ignore[misc]
                hand,
            )
            runs[raw] = (lambda one=one: timed_raw(one, messages), raw)  # type: ignore[misc]
            runs[f"{one.name}: run(inbox=Inbox())"] = (lambda one=one: timed_run(one, messages, Inbox()), raw)  # type: ignore[misc]
        race(f"relay to a Redis stream, batches of {BATCH}", rounds, relays)
        race("one message at a time, one INSERT each", rounds, runs)
        print("\nfrom COMMIT to publishing, relay idle before, poll_s=0.2")
        for one in worlds:
            print(f"  {one.name:<44} {latency_ms(one, 20 if quick else 100):8.1f} ms")
        for one in worlds:
            one.close()


if __name__ == "__main__":
    main()
