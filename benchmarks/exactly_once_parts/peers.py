"""Peers that do the same effect, one message at a time, with an inbox row written by hand in the effect's transaction.

Each runs in a process of its own, with the Python of ``make bench-peers``: it enqueues its messages, then handles them;
the clock runs from the first to the last effect. What differs in the work:

    Celery, taskiq, dramatiq   Redis; inbox row by hand; the acknowledgement is the library's own
    procrastinate, DBOS,       the queue is the database (PostgreSQL only): their own rows for each message come on top.
    absurd                     A step of DBOS 3 is recorded outside of the effect's transaction, so it has an inbox row,
                               and so has a task of absurd

absurd's package has no SQL schema: put ``sql/absurd.sql`` of its repository into ``.cache``.

None of them offers batches with a guarantee. Only ratios inside one run mean anything.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BENCH_PYTHON = ROOT / ".cache" / "bench-venv" / "bin" / "python"
ABSURD_SCHEMA = ROOT / ".cache" / "absurd.sql"
THREADS = 8


class Books:
    """Writes the effect, with a connection for each thread, and ends the process with the last one."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.n = int(given["n"])
        self.kind, self.where = given["kind"], given["where"]
        self._local, self._lock = threading.local(), threading.Lock()
        self._seen, self._began = 0, 0.0

    def book(self, number: int) -> None:
        """Write inbox row and effect in one transaction."""
        connection = self._connection()
        with connection.cursor() as cursor:
            message = f"peer-{os.getpid()}-{number}"
            stamp = "UTC_TIMESTAMP(6)" if self.kind == "mariadb" else "statement_timestamp()"
            cursor.execute(
                "INSERT INTO conquiet_inbox (source, consumer_group, message_id, handled_at) "
                f"VALUES (%s, %s, %s, {stamp})",
                (b"peer", b"peer", message.encode()),
            )
            cursor.execute("INSERT INTO effect (message_id, cents) VALUES (%s, %s)", (message, number % 100))
        connection.commit()
        self.count()

    def count(self) -> None:
        """Count an effect; report and leave with the last one."""
        with self._lock:
            self._began = self._began or time.perf_counter()
            self._seen += 1
            if self._seen == self.n:
                print(json.dumps({"rate": self.n / (time.perf_counter() - self._began)}), flush=True)
                os._exit(0)  # several of them take seconds to stop

    def _connection(self) -> Any:
        if not hasattr(self._local, "connection"):
            where = dict(self.where)
            if self.kind == "mariadb":
                self._local.connection = import_module("pymysql").connect(**where)
            else:
                where["dbname"] = where.pop("database")
                self._local.connection = import_module("psycopg").connect(**where)
        return self._local.connection


def handler(books: Books) -> Callable[[int], None]:
    """Return a plain function: libraries set attributes on it."""

    def book(number: int) -> None:
        books.book(number)

    return book


def celery(books: Books, given: dict[str, Any]) -> None:
    app = import_module("celery").Celery("peer", broker=given["redis"])
    app.conf.update(task_acks_late=True, worker_prefetch_multiplier=16, task_ignore_result=True)
    app.conf.update(worker_redirect_stdouts=False, worker_hijack_root_logger=False)
    task = app.task(name="book")(handler(books))
    for number in range(books.n):
        task.delay(number)
    app.worker_main(["worker", "--pool=threads", f"--concurrency={THREADS}", "--loglevel=CRITICAL", "--without-gossip"])


def dramatiq(books: Books, given: dict[str, Any]) -> None:
    library: Any = import_module("dramatiq")
    broker = import_module("dramatiq.brokers.redis").RedisBroker(url=given["redis"])
    library.set_broker(broker)
    actor = library.actor(handler(books))
    for number in range(books.n):
        actor.send(number)
    library.Worker(broker, worker_threads=THREADS).start()
    threading.Event().wait()


async def taskiq(books: Books, given: dict[str, Any]) -> None:
    broker = import_module("taskiq_redis").RedisStreamBroker(given["redis"], queue_name="peer", xread_count=100)
    task = broker.task(task_name="book")(handler(books))
    await broker.startup()
    for number in range(books.n):
        await task.kiq(number)
    api: Any = import_module("taskiq.api")
    await api.run_receiver_task(broker, max_async_tasks=THREADS, sync_workers=THREADS)


async def procrastinate(books: Books, given: dict[str, Any]) -> None:
    library: Any = import_module("procrastinate")
    where = given["where"]
    text = f"host={where['host']} port={where['port']} user={where['user']} dbname={where['database']}"
    app = library.App(connector=library.PsycopgConnector(conninfo=text))
    task = app.task(name="book")(handler(books))
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await task.batch_defer_async(*[{"number": number} for number in range(books.n)])
        await app.run_worker_async(concurrency=THREADS, wait=True, install_signal_handlers=False)


def dbos(books: Books, given: dict[str, Any]) -> None:
    library: Any = import_module("dbos")
    where = given["where"]
    url = f"postgresql+psycopg://{where['user']}@{where['host']}:{where['port']}/{where['database']}"
    library.DBOS(config={"name": "peer", "system_database_url": url, "log_level": "CRITICAL"})
    effect = library.DBOS.step(name="effect")(handler(books))

    def run(number: int) -> None:
        effect(number)

    book = library.DBOS.workflow(name="book")(run)
    library.DBOS.launch()
    queue = library.DBOS.register_queue("peer", worker_concurrency=THREADS, polling_interval_sec=0.05)
    for number in range(books.n):
        queue.enqueue(book, number)
    threading.Event().wait()


def absurd(books: Books, given: dict[str, Any]) -> None:
    where = given["where"]
    url = f"postgresql://{where['user']}@{where['host']}:{where['port']}/{where['database']}"
    with import_module("psycopg").connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS absurd CASCADE")
        connection.execute(ABSURD_SCHEMA.read_text(encoding="utf-8"))
    app = import_module("absurd_sdk").Absurd(url, queue_name="peer")
    app.create_queue("peer")

    def book(params: dict[str, int], _: object) -> None:
        books.book(params["number"])

    app.register_task(name="book")(book)
    for number in range(books.n):
        app.spawn("book", {"number": number})
    app.start_worker(concurrency=THREADS, poll_interval=0.01)


PEERS: dict[str, tuple[Callable[..., Any], str, bool]] = {
    "Celery, inbox by hand": (celery, "celery", False),
    "taskiq, inbox by hand": (taskiq, "taskiq_redis", False),
    "dramatiq, inbox by hand": (dramatiq, "dramatiq", False),
    "procrastinate, inbox by hand": (procrastinate, "procrastinate", True),
    "DBOS, inbox by hand": (dbos, "dbos", True),
    "absurd, inbox by hand": (absurd, "absurd_sdk", True),
}
"""The runner, the module that it needs, and whether it needs PostgreSQL."""


def available(kind: str) -> list[str]:
    """Return the peers that can be run; print the others with their reasons."""
    found = []
    for name, (_, module, on_postgres) in PEERS.items():
        if on_postgres and kind != "postgresql":
            continue
        if module == "absurd_sdk" and not ABSURD_SCHEMA.exists():
            print(f"  {name}: .cache/{ABSURD_SCHEMA.name} is missing, left out (sql/absurd.sql of its repository)")
            continue
        test = [str(BENCH_PYTHON), "-c", f"import {module}"]
        if BENCH_PYTHON.exists() and not subprocess.run(test, capture_output=True, check=False).returncode:
            found.append(name)
        else:
            print(f"  {name}: {module} is not installed, left out (make bench-peers)")
    return found


def timed_peer(name: str, given: dict[str, Any]) -> float:
    """Return the effects per second of a peer; 0 if it does not run here, which is printed."""
    words = [str(BENCH_PYTHON), __file__, json.dumps(given | {"name": name})]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        (line,) = [line for line in done.stdout.splitlines() if line.startswith('{"rate"')]  # beside a banner
        return float(json.loads(line)["rate"])
    except (subprocess.TimeoutExpired, ValueError) as error:
        last = "" if isinstance(error, subprocess.TimeoutExpired) else done.stderr.strip().splitlines()[-1:]
        print(f"  {name}: did not run here ({type(error).__name__}) {last}")
        return 0.0


def main() -> None:
    """Be one peer."""
    import logging

    logging.disable(logging.CRITICAL)
    given = json.loads(sys.argv[1])
    play, _, _ = PEERS[given["name"]]
    outcome = play(Books(given), given)
    if asyncio.iscoroutine(outcome):
        asyncio.run(outcome)


if __name__ == "__main__":
    main()
