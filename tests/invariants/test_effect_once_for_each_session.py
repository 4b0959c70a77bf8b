"""Every message has its effect once, for each kind of session, on Redis and on RabbitMQ, through all faults.

    DbSession, Session, AsyncSession        each with Redis and with RabbitMQ, on MySQL or MariaDB and on PostgreSQL

Workers are killed at four named points, paused past the claim threshold (Redis) and lose replies to COMMIT; the
database is killed and restarted. An effect is two rows in one transaction: a half is a failure too. With a planted bug
the test has to fail. ``CONQUIET_TORTURE=1`` makes it 2,000 messages and 100 kills in each cell.
"""

import asyncio
import contextlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
import redis
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from tests.invariants.histories import History, Row, database_facts, rabbit_facts, redis_facts, seed_or
from tests.invariants.lost_replies import LostReplies

from conquiet.errors import CommitUnknownError
from conquiet.queue.models import QueueMessage
from conquiet.testing import FaultProxy, MySQLServer, PostgresServer, wait_until
from conquiet.testing.discovery import MySQLFlavour, available_mysql_flavours
from conquiet.transactional import Inbox, async_transaction, create_tables, effect_once_async

WORKER = Path(__file__).with_name("session_worker.py")
SEED = seed_or(20261117)
TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
POINTS = ("after-inbox", "mid-handler", "before-commit", "after-commit")
STALE_S = 0.5
"""The workers' claim threshold."""
KINDS = ("DbSession", "Session", "AsyncSession")
# Every kind on Redis and one on RabbitMQ, on both databases; every combination at full size.
CELLS = [
    *(("redis", kind) for kind in KINDS),
    *(
        pytest.param("rabbitmq", kind, marks=pytest.mark.xdist_group("rabbitmq"))
        for kind in (KINDS if TORTURE else KINDS[2:])
    ),
]
BUGS = [
    ("second-connection", "Session", "lost"),
    ("orm-commit", "AsyncSession", "half"),
    *([("second-connection", "AsyncSession", "lost"), ("orm-commit", "Session", "half")] if TORTURE else []),
]
"""Each on one of both databases; at full size on every database."""
KILLS_EACH = 25 if TORTURE else 1
MESSAGES = 2_000 if TORTURE else 60


# At full size on MySQL too, where it was fetched (make matrix): Debian's "mysql" is MariaDB.
DATABASES: dict[str, Callable[[], MySQLServer | PostgresServer]] = {"mysql": MySQLServer, "postgresql": PostgresServer}
if TORTURE and MySQLFlavour.MYSQL in available_mysql_flavours():
    DATABASES["mysql-9"] = partial(MySQLServer, flavour=MySQLFlavour.MYSQL)


@pytest.fixture(scope="module", params=list(DATABASES.values()), ids=list(DATABASES))
def database(request: pytest.FixtureRequest) -> Iterator[MySQLServer | PostgresServer]:
    with request.param() as server:
        yield server


@pytest.fixture(scope="module")
def mysql() -> Iterator[MySQLServer]:
    with MySQLServer() as server:
        yield server


class Zygote:
    """One worker at a time, started again after each death."""

    def __init__(self, settings: dict[str, Any], worker: Path = WORKER) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self._process = subprocess.Popen(
            [sys.executable, str(worker), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._facts: queue.Queue[dict[str, int]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.pid = 0
        self.forker = self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._facts.put(json.loads(line))

    def start(self, point: str | None, nth: int = 0) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"point": point, "nth": nth}) + "\n")
        self._process.stdin.flush()
        self.pid = self._facts.get(timeout=60)["pid"]

    def ended(self) -> int | None:
        """Return how the worker ended; None while it runs."""
        with contextlib.suppress(queue.Empty):
            return self._facts.get_nowait()["ended"]
        return None

    def said(self) -> str:
        """Return the end of the workers' stderr: the reason why one ended."""
        self._errors.seek(0)
        return self._errors.read()[-6_000:].decode(errors="replace")

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        assert self._facts.get(timeout=60)["ended"] == 0, self.said()

    def close(self) -> None:
        assert self._process.stdin is not None
        if self.ended() is None and self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._process.stdin.close()
        self._process.wait(60)
        self._reader.join(60)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()


def is_cluster(url: str) -> bool:
    return "cluster=true" in url


def open_redis(url: str) -> Any:
    """Return a client of a Redis, or of a Redis Cluster."""
    return redis.RedisCluster.from_url(url.partition("?")[0]) if is_cluster(url) else redis.Redis.from_url(url)


class Cell:
    """One database, one source of messages, two workers.

    Attributes:
        worker: Their program.
        through: The layer between the engine and the handler, for the name of the storm.
    """

    worker = WORKER
    through = ""

    def __init__(
        self,
        server: MySQLServer | PostgresServer,
        proxy: FaultProxy,
        broker: str,
        url: str,
        source: str,
        *,
        kind: str,
        history: Callable[..., History],
        facts: dict[str, Any],
        bug: str = "",
    ) -> None:
        self.proxy, self._broker, self._url, self._source = proxy, broker, url, source
        self.db_url = server.create_database(f"cell_{time.monotonic_ns()}")
        self.engine = create_engine(self.db_url, pool_pre_ping=True)
        create_tables(self.engine)
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE effect (message INT, step INT)"))
        database = database_facts(self.engine)
        engine = "runtime.Consumer" if broker == "redis" else "RabbitConsumer"
        where = "one Redis" if broker == "redis" else "one RabbitMQ, classic queue"
        where = "Redis Cluster: 3 masters, 3 replicas" if is_cluster(url) else where
        place = f"{facts['name']} Cluster" if is_cluster(url) else facts["name"]
        self.history = history(
            f"{self.through}{kind} of {database['name']} with {place}",
            Row(f"{self.through}{engine}, inbox, {kind}", database["name"], where),
            seed=SEED,
            promise={"effects": "once", "stages": ["1", "2"], "commits": True},  # an effect is two rows
            servers=[facts, database],
            claim_idle_s=STALE_S if broker == "redis" else None,
        )
        settings = {
            "db": proxy.url_for(self.db_url), "broker": broker, "url": url, "source": source, "kind": kind, "bug": bug,
            "history": str(self.history.folder),
        }  # fmt: skip
        self.workers = [Zygote(settings, self.worker) for _ in range(2)]
        self.done: Counter[str] = Counter()
        self.sent = 0

    @property
    def source(self) -> str:
        """The stream or queue of the messages."""
        return self._source

    def send(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        self.history.record("enqueue", range=[self.sent, self.sent + count])
        if self._broker == "redis":
            with open_redis(self._url) as client, client.pipeline() as pipe:
                if not self.sent:
                    client.xgroup_create(self._source, "g", "0", mkstream=True)
                for number in numbers:
                    pipe.xadd(self._source, {"data": json.dumps({"n": number})})
                pipe.execute()
        else:
            connection = pika.BlockingConnection(pika.URLParameters(self._url))
            channel = connection.channel()
            channel.queue_declare(self._source, durable=True)
            for number in numbers:
                body, properties = json.dumps({"n": number}), pika.BasicProperties(message_id=f"m-{number}")
                channel.basic_publish("", self._source, body.encode(), properties)
            connection.close()
        self.sent += count

    def run(self, points: list[str], *, lost_commits: int = 0, restart: Callable[[], object] | None = None) -> None:
        """Let the workers die at all points in turn, then let them finish."""
        rng = random.Random(SEED)
        self.history.points = Counter(points)
        for point in points:
            self.history.record("armed", point=point)
        left = list(points)
        deadline = time.monotonic() + (3_000 if TORTURE else 150)
        replies = LostReplies(self.proxy, self.history, lost_commits)
        for worker in self.workers:
            worker.start(left.pop() if left else None, rng.randint(1, 4))
        while self.done["killed"] + self.done["paused"] < len(points):
            assert time.monotonic() < deadline, f"{self.done}, {len(left)} kills left, {self.problems()}"
            time.sleep(0.05)
            replies.note()
            if self.is_settled():
                self.send(20)  # without work no worker comes to its point
            for worker in self.workers:
                status = worker.ended()
                if status is None:
                    continue
                assert status in {signal.SIGKILL, signal.SIGSTOP}, f"a worker ended with {status}: {worker.said()}"
                self.done["paused" if status == signal.SIGSTOP else "killed"] += 1
                replies.arm()
                if restart is not None and len(left) < len(points) / 2:
                    with self.history.outage("database killed and restarted", charges=True):
                        restart()
                    restart = None
                    self.done["restarted"] += 1
                worker.start(left.pop() if left else None, rng.randint(1, 4))
        replies.end()
        self.done["lost replies"] = replies.struck
        self.history.recovery()
        while not self.is_settled():
            assert time.monotonic() < deadline, f"{self.done}, {self.problems()}"
            time.sleep(0.05)
        self.history.record("drained")
        for worker in self.workers:
            worker.stop()
        assert self.is_settled()
        leaked = self.history.leaks(self.engine, helpers=[worker.forker for worker in self.workers])
        self.history.record("state", left={"unsettled": int(not self.is_settled())}, leaked=leaked)

    def is_settled(self) -> bool:
        """Return whether no message is unread, pending or ready."""
        if self._broker == "redis":
            with open_redis(self._url) as client:
                info: Any = client.xinfo_groups(self._source)
                (group,) = info
                unread: Any = client.xrange(self._source, f"({group['last-delivered-id'].decode()}", "+", count=1)
                return not unread and group["pending"] == 0
        return self._ready() == 0 and self._effects() >= self.sent

    def _ready(self) -> int:
        connection = pika.BlockingConnection(pika.URLParameters(self._url))
        found = connection.channel().queue_declare(self._source, passive=True).method.message_count
        connection.close()
        return int(found)

    def _effects(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text("SELECT COUNT(DISTINCT message) FROM effect")).scalar_one())

    def problems(self) -> list[str]:
        with self.engine.connect() as connection:
            rows = connection.execute(text("SELECT message, step FROM effect")).all()
        for step in (1, 2):
            self.history.record("state", effects=[row[0] for row in rows if row[1] == step], of=str(step))
        count = Counter((row[0], row[1]) for row in rows)
        messages = {message for message, _ in count}
        found = []
        if twice := sum(times > 1 for times in count.values()):
            found.append(f"{twice} twice")
        if half := sum((message, 1) not in count or (message, 2) not in count for message in messages):
            found.append(f"{half} half")
        if lost := self.sent - len(messages):
            found.append(f"{lost} lost")
        return found

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.engine.dispose()


@pytest.fixture
def make_cell(
    database: MySQLServer | PostgresServer,
    fault_proxy: Callable[[str], FaultProxy],
    request: pytest.FixtureRequest,
    key_prefix: str,
    new_history: Callable[..., History],
) -> Iterator[Callable[..., Cell]]:
    made: list[Cell] = []

    def make(broker: str, **options: Any) -> Cell:
        url = request.getfixturevalue("redis_url" if broker == "redis" else "amqp_url")
        if broker == "redis":
            with redis.Redis.from_url(url) as client:
                facts = redis_facts(client)
        else:
            facts = rabbit_facts(request.getfixturevalue("rabbitmq_server").api, queue="classic, durable")
        options |= {"history": new_history, "facts": facts}
        made.append(Cell(database, fault_proxy(database.url), broker, url, f"{key_prefix}cell", **options))
        return made[-1]

    yield make
    for cell in made:
        cell.close()


@pytest.mark.spec("RS-002.11")
@pytest.mark.timeout(3_600 if TORTURE else 300)
@pytest.mark.parametrize(("broker", "kind"), CELLS)
def test_every_message_has_its_effect_once_whatever_dies(
    make_cell: Callable[..., Cell], database: MySQLServer | PostgresServer, broker: str, kind: str
) -> None:
    cell = make_cell(broker, kind=kind)
    cell.send(MESSAGES)
    points = [*POINTS * KILLS_EACH, *["pause"] * (KILLS_EACH if broker == "redis" else 0)]

    def restart() -> None:
        database.kill()
        database.restart()

    started = time.monotonic()
    cell.run(points, lost_commits=KILLS_EACH * 2, restart=restart)

    took_s, done = time.monotonic() - started, dict(cell.done)
    print(f"\n{database.name}, {broker}, {kind}: {cell.sent} messages in {took_s:.0f} s, {done}")  # noqa: T201
    assert cell.problems() == []
    assert cell.history.judge()["examples"] == {}
    assert cell.done["killed"] + cell.done["paused"] == len(points)
    assert cell.done["restarted"] == 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("database", "bug", "kind", "seen"),
    [
        pytest.param(DATABASES[name], *bug, id=f"{name}-{'-'.join(bug)}")
        for number, bug in enumerate(BUGS)
        for name in (DATABASES if TORTURE else [list(DATABASES)[number]])
    ],
    indirect=["database"],
)
def test_a_planted_bug_in_the_transaction_is_found(
    make_cell: Callable[..., Cell], bug: str, kind: str, seen: str
) -> None:
    cell = make_cell("redis", kind=kind, bug=bug)
    cell.send(30)

    cell.run(["mid-handler"] * 3)

    problems = cell.problems()
    assert any(seen in problem for problem in problems), problems
    # The checker calls a half effect a lost one (a row is missing) or one too many.
    assert {"lost", "effect twice"} & cell.history.judge(publish=False)["anomalies"].keys()


@pytest.mark.parametrize("bug", ["", "swallowed-cancellation"])
def test_a_cancellation_swallowed_during_commit_loses_the_effect(
    mysql: MySQLServer, fault_proxy: Callable[[str], FaultProxy], monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    """The COMMIT never reaches the server. Without the bug that is unknown, not done."""
    proxy = fault_proxy(mysql.url)
    plain = create_engine(mysql.url)
    create_tables(plain)
    monkeypatch.setattr(async_transaction, "_LIMIT_S", 0.3)
    if bug:

        async def commit(self: Any, connection: Any) -> None:
            self._guard.allow_commit()
            with contextlib.suppress(asyncio.CancelledError):
                await connection.commit()

        monkeypatch.setattr(async_transaction.AsyncTransaction, "_commit", commit)
    message = QueueMessage(f"swallowed-{bug}", "g", "1-0", {})

    async def run() -> str:
        engine = create_async_engine(proxy.url_for(mysql.url).replace("+pymysql", "+asyncmy"))
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
        at_its_end = asyncio.Event()

        async def work(_: Any) -> None:
            proxy.stall()
            at_its_end.set()

        task = asyncio.create_task(effect_once_async(engine, Inbox(), message, work))
        await at_its_end.wait()
        await asyncio.sleep(0.1)  # its COMMIT is on the way, and does not arrive
        task.cancel()
        try:
            await task
        except (CommitUnknownError, asyncio.CancelledError) as error:
            return type(error).__name__
        finally:
            proxy.disconnect()
            proxy.resume()
            await engine.dispose()
        return "acknowledged"

    result = asyncio.run(run())

    wait_until(lambda: not _open_transactions(plain), message="the server has rolled back")
    with plain.connect() as connection:
        committed = Inbox().contains(connection, message)
    plain.dispose()
    assert (result, committed) == (("acknowledged", False) if bug else ("CommitUnknownError", False))


def _open_transactions(engine: Any) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT COUNT(*) FROM information_schema.innodb_trx")).scalar_one())
