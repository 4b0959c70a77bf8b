"""Servers with fsync on, and the work of every contender: an inbox row and a row of an effect for each message."""

import itertools
import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import redis
from sqlalchemy import Engine, create_engine, text

from conquiet.processor import NewMessage, SyncEmitter
from conquiet.testing.discovery import MySQLFlavour
from conquiet.testing.mysql import MySQLServer
from conquiet.testing.postgres import PostgresServer
from conquiet.testing.redis import RedisServer
from conquiet.transactional import create_tables

EVENT = "order.paid"
GROUP = "processor"
SIZE = 200

EFFECT = "INSERT INTO effect (message_id, cents) VALUES (:id, :cents)"


@dataclass
class World:
    """The servers of one run.

    Attributes:
        kind: ``mariadb`` or ``postgresql``.
        url: Of the database, synchronous driver.
        redis_url: Of Redis.
        durable: What the server says about fsync.
    """

    kind: str
    url: str
    redis_url: str
    durable: str
    engine: Engine
    client: Any
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def stream(self) -> str:
        """Return the name of a new stream with its group."""
        name = f"orders-{next(self.numbers)}"
        self.client.xgroup_create(name, GROUP, "0", mkstream=True)
        return name

    def fill(self, stream: str, count: int, *, first: int = 0) -> None:
        """Emit messages of a processor; their ids are the producer's."""
        with SyncEmitter(self.client, stream) as emitter:
            numbers = range(first, first + count)
            for at in range(0, count, 1_000):
                emitter.emit_many(
                    [
                        NewMessage(EVENT, {"cents": number % 100}, id=f"{stream}-{number}")
                        for number in numbers[at : at + 1_000]
                    ]
                )

    def effects(self, stream: str) -> tuple[int, int]:
        """Return how many effects there are of a stream's messages, and how many different ones."""
        query = text("SELECT COUNT(*), COUNT(DISTINCT message_id) FROM effect WHERE message_id LIKE :like")
        with self.engine.connect() as connection:
            row = connection.execute(query, {"like": f"{stream}-%"}).one()
        return int(row[0]), int(row[1])

    def left(self, stream: str) -> int:
        """Return how many messages of the stream are not acknowledged."""
        (group,) = self.client.xinfo_groups(stream)
        return int(group["lag"] or 0) + int(group["pending"])

    def commit_ms(self) -> float:
        """Return how long a COMMIT of one row takes, as a median."""
        took = []
        for _ in range(50):
            with self.engine.connect() as connection:
                connection.execute(text("INSERT INTO effect (message_id, cents) VALUES ('commit', 0)"))
                began = time.perf_counter()
                connection.commit()
                took.append(time.perf_counter() - began)
        return statistics.median(took) * 1_000

    def async_url(self) -> str:
        """Return the URL with the asynchronous driver."""
        return self.url.replace("+pymysql", "+asyncmy")


@contextmanager
def world_of(kind: str) -> Iterator[World]:
    """Start Redis and a database that syncs its log at every commit."""
    with RedisServer() as broker:
        if kind == "mariadb":
            args = ["--innodb-flush-log-at-trx-commit=1", "--max-connections=200"]
            with MySQLServer(flavour=MySQLFlavour.MARIADB, extra_args=args) as server:
                yield _open(kind, server.url, broker.url)
        else:
            settings = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
            with PostgresServer(settings=settings) as postgres:
                yield _open(kind, postgres.url, broker.url)


def _open(kind: str, url: str, redis_url: str) -> World:
    engine = create_engine(url, pool_size=20)
    create_tables(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effect (message_id VARCHAR(64) NOT NULL, cents INT NOT NULL)"))
        names = (
            ["innodb_flush_log_at_trx_commit", "sync_binlog"] if kind == "mariadb" else ["fsync", "synchronous_commit"]
        )
        found = []
        for name in names:
            row: Any = connection.execute(
                text(f"SHOW VARIABLES LIKE '{name}'" if kind == "mariadb" else f"SHOW {name}")
            ).one()
            found.append(f"{name}={row[-1]}")
    return World(kind, url, redis_url, ", ".join(found), engine, redis.Redis.from_url(redis_url))


def payload_of(fields: dict[bytes, bytes]) -> dict[str, Any]:
    """Return the message in an entry."""
    decoded: dict[str, Any] = json.loads(fields[b"data"])
    return decoded


def cores() -> str:
    """Return what else runs on this machine."""
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
