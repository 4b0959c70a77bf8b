"""The cost of the inbox and the speed of the relay, compared with hand-written loops, in one run.

    .venv/bin/python benchmarks/transactional.py [--quick] [--flavour mariadb|mysql] [--rows 1000000]

Contenders take turns in short rounds; figures are medians of rounds, and only ratios inside one run mean
anything. ``--rows`` says how many rows the inbox has in the last part.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pymysql
import redis
from sqlalchemy import create_engine, make_url, text

from conquiet.config import QueueConfig
from conquiet.db.session import DbSession
from conquiet.queue import QueueConsumer, QueueMessage
from conquiet.testing.discovery import MySQLFlavour
from conquiet.testing.mysql import MySQLServer
from conquiet.testing.redis import RedisServer
from conquiet.transactional import Inbox, Outbox, OutboxRelay, ToStream, create_tables

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

ORDER = {"account": 1, "cents": 5, "note": "a payload of about sixty bytes"}


class World:
    def __init__(self, database: MySQLServer, broker: RedisServer) -> None:
        self.url = database.url
        self.engine: Engine = create_engine(database.url)
        # A session of ours always ends its transaction itself, so the pool's ROLLBACK on return only costs a trip.
        self.lean: Engine = create_engine(database.url, pool_reset_on_return=None)
        self.client = redis.Redis.from_url(broker.url)
        self.numbers = itertools.count()
        create_tables(self.engine)
        with DbSession(self.engine) as session:
            session.execute("CREATE TABLE effect (id BIGINT AUTO_INCREMENT PRIMARY KEY, cents INT) ENGINE=InnoDB")

    def raw_database(self) -> Any:
        url = make_url(self.url)
        return pymysql.connect(host=url.host, port=url.port or 3306, user=url.username or "", database=url.database)

    def consumer(self) -> QueueConsumer:
        stream = f"orders-{next(self.numbers)}"
        return QueueConsumer(self.client, QueueConfig(stream, "g", "c", block_ms=50))

    def empty_outbox(self) -> None:
        with DbSession(self.engine) as session:
            session.execute("TRUNCATE TABLE conquiet_outbox")

    def fill_outbox(self, count: int, *, keys: int | None = None) -> None:
        outbox = Outbox()
        with DbSession(self.engine) as session:
            for number in range(count):
                outbox.add(session, "ledger", ORDER, key=None if keys is None else str(number % keys))


# ------------------------------------------------------------------ one message at a time
def handle(msg: QueueMessage, session: DbSession) -> None:
    session.execute("INSERT INTO effect (cents) VALUES (:cents)", {"cents": msg.payload["cents"]})


def timed_run(world: World, count: int, inbox: Inbox | None, *, lean: bool = False) -> float:
    with world.consumer() as consumer:
        consumer.queue.enqueue_many([ORDER] * count)
        left = itertools.count(1)

        def counted(msg: QueueMessage, session: DbSession) -> None:
            handle(msg, session)
            if next(left) == count:
                consumer.stop()

        started = time.perf_counter()
        consumer.run(handler=counted, engine=world.lean if lean else world.engine, inbox=inbox)
        return count / (time.perf_counter() - started)


def timed_raw(world: World, count: int, *, inbox: bool) -> float:
    """A careful hand-written loop: the driver, redis-py, one message at a time."""
    client, stream = world.client, f"raw-{next(world.numbers)}"
    client.xgroup_create(stream, "g", "0", mkstream=True)
    with client.pipeline() as pipe:
        for _ in range(count):
            pipe.xadd(stream, {"data": json.dumps(ORDER)})
        pipe.execute()
    connection = world.raw_database()
    cursor = connection.cursor()
    started = time.perf_counter()
    for _ in range(count):
        reply: Any = client.xreadgroup("g", "c", {stream: ">"}, count=1)
        ((_, ((entry, fields),)),) = reply
        payload = json.loads(fields[b"data"])
        if inbox:
            cursor.execute(
                "INSERT INTO conquiet_inbox (source, consumer_group, message_id, handled_at) "
                "VALUES (%s, %s, %s, UTC_TIMESTAMP(6))",
                (stream.encode(), b"g", entry),
            )
        cursor.execute("INSERT INTO effect (cents) VALUES (%s)", (payload["cents"],))
        connection.commit()
        client.xack(stream, "g", entry)
    rate = count / (time.perf_counter() - started)
    connection.close()
    return rate


# ------------------------------------------------------------------ relay
def timed_relay(world: World, count: int, *, keys: int | None, batch: int) -> float:
    world.empty_outbox()
    world.fill_outbox(count, keys=keys)
    with (
        ToStream(world.client, "ledger") as target,
        OutboxRelay(world.engine, {"ledger": target}, batch=batch) as relay,
    ):
        relay.relay_once()  # opens the connection; a batch less to count
        started = time.perf_counter()
        done = relay.drain(timeout_s=120).published
        took = time.perf_counter() - started
    world.client.delete("ledger")
    return done / took


def timed_hand_written(world: World, count: int, *, batch: int) -> float:
    """SELECT … FOR UPDATE SKIP LOCKED, a pipeline of XADD, DELETE, COMMIT. No order, no parking, no ages."""
    world.empty_outbox()
    world.fill_outbox(count)
    connection = world.raw_database()
    cursor = connection.cursor()
    done, started = 0, time.perf_counter()
    while True:
        cursor.execute(
            "SELECT seq, message_id, payload FROM conquiet_outbox WHERE target = 'ledger' AND parked = 0 "
            "AND due_at <= UTC_TIMESTAMP(6) ORDER BY due_at, seq LIMIT %s FOR UPDATE SKIP LOCKED",
            (batch,),
        )
        rows = cursor.fetchall()
        if not rows:
            break
        with world.client.pipeline() as pipe:
            for _, message_id, payload in rows:
                pipe.xadd("ledger", {"data": json.dumps({**json.loads(payload), "_outbox_id": message_id.decode()})})
            pipe.execute()
        cursor.execute(f"DELETE FROM conquiet_outbox WHERE seq IN ({','.join(str(row[0]) for row in rows)})")
        connection.commit()
        done += len(rows)
    took = time.perf_counter() - started
    connection.close()
    world.client.delete("ledger")
    return done / took


def timed_hand_written_in_order(world: World, count: int, *, keys: int, batch: int) -> float:
    """For several relays that keep the order of each key: look, lock the oldest row of each, read the keys again."""
    world.empty_outbox()
    world.fill_outbox(count, keys=keys)
    connection = world.raw_database()
    cursor = connection.cursor()
    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    done, started = 0, time.perf_counter()
    while True:
        cursor.execute(
            "SELECT seq, order_key FROM conquiet_outbox WHERE target = 'ledger' AND parked = 0 AND free = 0 "
            "AND due_at <= UTC_TIMESTAMP(6) ORDER BY due_at, seq LIMIT %s",
            (batch,),
        )
        seen = cursor.fetchall()
        if not seen:
            break
        first: dict[bytes, int] = {}
        for seq, key in seen:
            first.setdefault(key, seq)
        cursor.execute(
            f"SELECT seq, order_key FROM conquiet_outbox WHERE seq IN ({','.join(map(str, first.values()))}) "
            "FOR UPDATE SKIP LOCKED"
        )
        held = {seq for seq, _ in cursor.fetchall()}
        cursor.execute(
            "SELECT seq, order_key, message_id, payload FROM conquiet_outbox FORCE INDEX (by_key) "
            "WHERE target = 'ledger' AND order_key IN %s AND parked = 0 AND seq <= %s ORDER BY seq LIMIT %s",
            (list(first), seen[-1][0], batch),
        )
        ours: dict[bytes, bool] = {}
        rows = [row for row in cursor.fetchall() if ours.setdefault(row[1], row[0] in held)]
        with world.client.pipeline() as pipe:
            for _, _, message_id, payload in rows:
                pipe.xadd("ledger", {"data": json.dumps({**json.loads(payload), "_outbox_id": message_id.decode()})})
            pipe.execute()
        cursor.execute(f"DELETE FROM conquiet_outbox WHERE seq IN ({','.join(str(row[0]) for row in rows)})")
        connection.commit()
        done += len(rows)
    took = time.perf_counter() - started
    connection.close()
    world.client.delete("ledger")
    return done / took


# ------------------------------------------------------------------ rounds
def race(title: str, rounds: int, contenders: dict[str, Callable[[], float]], *, against: str) -> None:
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            rates[name].append(contender())
    base = statistics.median(rates[against])
    print(f"\n{title}")
    for name, found in rates.items():
        rate = statistics.median(found)
        print(f"  {name:<44} {rate:>8,.0f}/s   {rate / base:5.2f} x {against}")


def grow_inbox(world: World, rows: int) -> None:
    """Rows of the same stream, as a stream that has lived long would have them."""
    with world.engine.begin() as connection:
        for start in range(0, rows, 10_000):
            values = ",".join(
                f"('old','g','{1_700_000_000_000 + n}-0','2026-11-01')" for n in range(start, start + 10_000)
            )
            connection.execute(
                text(f"INSERT INTO conquiet_inbox (source, consumer_group, message_id, handled_at) VALUES {values}")
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--flavour", choices=[flavour.value for flavour in MySQLFlavour], default=None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    asked = parser.parse_args()
    count, rounds = (200, 3) if asked.quick else (600, 7)
    messages = 2_000 if asked.quick else 5_000
    flavour = None if asked.flavour is None else MySQLFlavour(asked.flavour)
    with MySQLServer(flavour=flavour) as database, RedisServer() as broker:
        world = World(database, broker)
        runs: dict[str, Callable[[], float]] = {
            "raw loop": lambda: timed_raw(world, count, inbox=False),
            "raw loop with an inbox row": lambda: timed_raw(world, count, inbox=True),
            "run()": lambda: timed_run(world, count, None),
            "run(inbox=Inbox())": lambda: timed_run(world, count, Inbox()),
            "run(), no reset on return": lambda: timed_run(world, count, None, lean=True),
            "run(inbox=Inbox()), no reset on return": lambda: timed_run(world, count, Inbox(), lean=True),
        }
        race(f"one message at a time, one INSERT each ({database.name})", rounds, runs, against="run()")
        race(
            "relay to a Redis stream, batches of 200",
            rounds,
            {
                "hand-written batch relay, no order": lambda: timed_hand_written(world, messages, batch=200),
                "hand-written batch relay, 50 keys in order": lambda: timed_hand_written_in_order(
                    world, messages, keys=50, batch=200
                ),
                "OutboxRelay, no keys": lambda: timed_relay(world, messages, keys=None, batch=200),
                "OutboxRelay, 50 keys in order": lambda: timed_relay(world, messages, keys=50, batch=200),
            },
            against="hand-written batch relay, no order",
        )
        grow_inbox(world, asked.rows if not asked.quick else 100_000)
        race(
            f"the same with {asked.rows if not asked.quick else 100_000:,} rows in the inbox",
            rounds,
            runs,
            against="run()",
        )
        world.engine.dispose()
        world.lean.dispose()
        world.client.close()


if __name__ == "__main__":
    main()
