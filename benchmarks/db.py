"""The database package against the raw drivers and plain SQLAlchemy, doing the same work, in one run.

    .venv/bin/python benchmarks/db.py [--quick] [--driver pymysql|mysqldb] [--flavour mariadb|mysql] [--growth]

Contenders take turns (50 ms; 400 ms with 8 writers, where a turn must hold many calls of each), so a noisy machine
disturbs all of them alike; figures are medians of the turns, and only ratios inside one run mean anything. Round trips
are counted by the server (Questions).
"""

import argparse
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlalchemy import create_engine, make_url, text

from conquiet.config import DbConfig
from conquiet.db import DbOperation, DbOperationType, DbWriter, LockStrategy
from conquiet.testing.discovery import MySQLFlavour
from conquiet.testing.mysql import MySQLServer

ROWS = 1_000
BATCH = 500
WRITERS = 8
# A turn lasts until the slowest thread has finished its last call: it must be long against one call.
TURN_S = {1: 0.05, WRITERS: 0.4}
TURNS = {1: 30, WRITERS: 15}
Work = Callable[[], Any]
Step = tuple[str, Callable[[], tuple[Any, ...]]]


@dataclass
class Contender:
    name: str
    make: Callable[[], Work]  # called in the thread that runs it
    per_call: int = 1
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


class Batches:
    """Rows with ids that nobody else has; threads may share it."""

    def __init__(self, ids: Iterator[int]) -> None:
        self.ids = ids

    def __next__(self) -> list[dict[str, Any]]:
        return [{"id": next(self.ids), "n": 1, "note": "hello"} for _ in range(BATCH)]


class Stocked:
    """Work on things that are made beforehand, between the turns."""

    def __init__(self, make: Callable[[], Any], use: Callable[[Any], Any], stock: int = 40) -> None:
        self.make, self.use, self.stock = make, use, stock
        self.shelf: list[Any] = []

    def refill(self) -> None:
        self.shelf += [self.make() for _ in range(self.stock - len(self.shelf))]

    def __call__(self) -> None:
        self.use(self.shelf.pop() if self.shelf else self.make())


class Team:
    """The threads of one contender: they keep their connections between turns."""

    def __init__(self, bench: "Bench", contender: Contender, threads: int) -> None:
        self.bench, self.contender = bench, contender
        self.barrier = threading.Barrier(threads + 1)
        self.done = [0] * threads
        self.deadline = 0.0
        self.over = False
        self.workers = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]
        for worker in self.workers:
            worker.start()
        self.barrier.wait()  # each has its connection and has warmed up

    def _run(self, number: int) -> None:
        self.bench.threads.row = number
        work = self.contender.make()
        work()
        self.barrier.wait()
        while True:
            if isinstance(work, Stocked):
                work.refill()
            self.barrier.wait()  # ready
            self.barrier.wait()  # go
            if self.over:
                return
            count, cpu = 0, time.thread_time()
            while time.perf_counter() < self.deadline:
                work()
                count += self.contender.per_call
            self.done[number] = count
            if count:
                self.contender.cpu_us.append((time.thread_time() - cpu) / count * 1e6)
            self.barrier.wait()

    def turn(self, seconds: float) -> float:
        self.barrier.wait()  # ready
        started = time.perf_counter()
        self.deadline = started + seconds
        self.barrier.wait()  # go
        self.barrier.wait()  # done
        return sum(self.done) / (time.perf_counter() - started)

    def dismiss(self) -> None:
        self.over = True
        self.barrier.wait()  # ready
        self.barrier.wait()  # go home
        for worker in self.workers:
            worker.join()


class Bench:
    def __init__(self, server: MySQLServer, driver: str, *, quick: bool, only: str) -> None:
        self.url = make_url(server.url).set(drivername=f"mysql+{driver}")
        self.quick, self.only = quick, only
        self.engine = create_engine(self.url, pool_size=24)
        self.admin = create_engine(server.url, isolation_level="AUTOCOMMIT").connect()
        self.ids: Iterator[int] = itertools.count(10_000_000)
        self.threads = threading.local()
        self.admin.execute(
            text("CREATE TABLE t (id BIGINT PRIMARY KEY, n INT NOT NULL, note VARCHAR(60)) ENGINE=InnoDB")
        )
        self.admin.execute(text("INSERT INTO t VALUES (:id, 0, 'x')"), [{"id": i} for i in range(ROWS)])

    # ------------------------------------------------------------------ raw driver
    def raw(self, *, autocommit: bool) -> Any:
        connection = self.engine.dialect.connect(*self._connect_arguments()[0], **self._connect_arguments()[1])
        connection.autocommit(autocommit)
        return connection

    def _connect_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = self.engine.dialect.create_connect_args(self.url)
        return tuple(args), dict(kwargs)

    def raw_statements(self, *steps: Step, autocommit: bool) -> Callable[[], Work]:
        def make() -> Work:
            connection = self.raw(autocommit=autocommit)
            cursor = connection.cursor()

            def work() -> None:
                for statement, values in steps:
                    if statement == "COMMIT":
                        connection.commit()
                    else:
                        cursor.execute(statement, values())
                        if cursor.description:
                            cursor.fetchall()

            return work

        return make

    # ------------------------------------------------------------------ measuring
    def race(self, title: str, enter: Callable[[], list[Contender]], *, threads: int = 1) -> None:
        """Many short turns for each, taking turns: a disturbance of the machine then hits them alike."""
        if not title.startswith(self.only):
            return
        contenders = enter()
        teams = [Team(self, contender, threads) for contender in contenders]
        for contender in contenders:
            contender.rates.clear()
        for number in range(self.turns(threads)):
            for team in teams if number % 2 else reversed(teams):
                team.contender.rates.append(team.turn(TURN_S[threads]))
        for team in teams:
            team.dismiss()
        print(f"\n{title} ({threads} writer{'s' if threads > 1 else ''})")
        base = contenders[-1].rate
        for contender in contenders:
            trips = f"{self._trips(contender):7.3f}" if threads == 1 else "      -"
            cpu = statistics.median(contender.cpu_us)
            print(
                f"  {contender.name:34} {contender.rate:10,.0f} op/s  {contender.rate / base:5.2f} x "
                f"{trips} trips {cpu:7.1f} us of client CPU"
            )

    def rate_of(self, contender: Contender) -> float:
        """The rate of one alone, with one writer."""
        team = Team(self, contender, 1)
        rates = [team.turn(TURN_S[1]) for _ in range(self.turns(1))]
        team.dismiss()
        return statistics.median(rates)

    def turns(self, threads: int) -> int:
        return 10 if self.quick else TURNS[threads]

    def _trips(self, contender: Contender, times: int = 20) -> float:
        self.threads.row = 0
        work = contender.make()
        work()
        before = self._questions()
        for _ in range(times):
            work()
        return (self._questions() - before - 1) / (times * contender.per_call)

    def _questions(self) -> int:
        found: Any = self.admin.execute(text("SHOW GLOBAL STATUS LIKE 'Questions'")).first()
        return int(found[1])

    # ------------------------------------------------------------------ what is compared
    def row(self) -> int:
        number: int = self.threads.row
        return number

    def value(self) -> int:
        """Another one each time: a row that does not change costs the server no write."""
        return next(self.ids) % 1_000_000_000

    def insert(self) -> list[Contender]:
        op = DbOperationType.INSERT
        statement = text("INSERT INTO t (id, n, note) VALUES (:id, :n, :note)")

        def ours() -> Work:
            writer = DbWriter(self.engine, DbConfig("t"))

            def work() -> None:
                key = next(self.ids)
                writer.execute(DbOperation("t", op, key, {"id": key, "n": 1, "note": "hello"}))

            return work

        def plain() -> None:
            with self.engine.begin() as conn:
                conn.execute(statement, {"id": next(self.ids), "n": 1, "note": "hello"})

        raw = ("INSERT INTO t (id, n, note) VALUES (%s, %s, %s)", lambda: (next(self.ids), 1, "hello"))
        return [
            Contender("conquiet DbWriter.execute", ours),
            Contender("raw driver, autocommit", self.raw_statements(raw, autocommit=True)),
            Contender("SQLAlchemy engine.begin()", lambda: plain),
        ]

    def many(self) -> list[Contender]:
        """Both get rows that exist already: only the writing is measured."""

        def ours() -> Work:
            writer = DbWriter(self.engine, DbConfig("t"))
            return Stocked(
                lambda: [_insert(row) for row in next(batches)],
                writer.execute_many,
            )

        def by_hand() -> Work:
            cursor = self.raw(autocommit=True).cursor()
            statement = "INSERT INTO t (id, n, note) VALUES " + ", ".join(["(%s, %s, %s)"] * BATCH)
            return Stocked(
                lambda: next(batches),
                lambda rows: cursor.execute(
                    statement, [value for row in rows for value in (row["id"], row["n"], row["note"])]
                ),
            )

        batches = Batches(self.ids)
        single = self.insert()[0]
        return [
            Contender("conquiet execute_many, 500 rows", ours, BATCH),
            Contender("conquiet execute, one by one", single.make),
            Contender("multi-row INSERT by hand, raw", by_hand, BATCH),
        ]

    def locked(self, strategy: LockStrategy, *, reading: bool) -> list[Contender]:
        """UPDATE (or modify) under a strategy: ours, the same statements raw, the same in plain SQLAlchemy."""
        before, read, after = _sequence(strategy, reading=reading)
        update = "UPDATE t SET n = %s WHERE id = %s"

        def ours() -> Work:
            writer = DbWriter(self.engine, DbConfig("t"), strategy)
            key = self.row()
            if reading:
                return lambda: writer.modify(key, lambda row: {"n": row["n"] + 1})
            kind = DbOperationType.UPDATE
            return lambda: writer.execute(DbOperation("t", kind, key, {"n": self.value()}))

        def raw() -> Work:
            key = self.row()
            name = f"bench:{key}"
            bind = {"%n": (name,), "%k": (key,)}
            steps = [
                (s.replace("%n", "%s").replace("%k", "%s"), next((v for m, v in bind.items() if m in s), ()))
                for s in before + read
            ]
            tail = [(s.replace("%n", "%s"), (name,) if "%n" in s else ()) for s in after]
            write: Step = (update, lambda: (self.value(), key))
            if strategy is LockStrategy.NONE and not reading:
                return self.raw_statements(write, autocommit=True)()
            fixed: list[Step] = [(s, lambda v=v: v) for s, v in steps]  # type: ignore[misc]
            ending: list[Step] = [(s, lambda v=v: v) for s, v in tail]  # type: ignore[misc]
            return self.raw_statements(*fixed, write, *ending, autocommit=False)()

        def plain() -> Work:
            key = self.row()
            fixed = {"name": f"bench:{key}", "key": key}
            named = [text(s.replace("%n", ":name").replace("%k", ":key")) for s in before + read]
            write = text("UPDATE t SET n = :n WHERE id = :key")
            tail = [text(s.replace("%n", ":name")) for s in after if s != "COMMIT"]

            def work() -> None:
                params = {**fixed, "n": self.value()}
                with self.engine.connect() as conn:
                    for statement in named:
                        result = conn.execute(statement, params)
                        if result.returns_rows:
                            result.all()
                    conn.execute(write, params)
                    conn.commit()
                    for statement in tail:
                        conn.execute(statement, params)

            return work

        verb = "modify" if reading else "execute"
        return [
            Contender(f"conquiet DbWriter.{verb}", ours),
            Contender("raw driver, same statements", raw),
            Contender("plain SQLAlchemy, same statements", plain),
        ]


def _insert(row: dict[str, Any]) -> DbOperation:
    return DbOperation("t", DbOperationType.INSERT, row["id"], row)


def _sequence(strategy: LockStrategy, *, reading: bool) -> tuple[list[str], list[str], list[str]]:
    get, release = "SELECT GET_LOCK(%n, 10)", "SELECT RELEASE_LOCK(%n)"
    plain = ["SELECT * FROM t WHERE id = %k"] if reading else []
    locking = [f"SELECT {'*' if reading else 'id'} FROM t WHERE id = %k FOR UPDATE"]
    return {
        LockStrategy.NONE: ([], plain, ["COMMIT"]),
        LockStrategy.ROW: ([], locking, ["COMMIT"]),
        LockStrategy.ADVISORY: ([get], plain, ["COMMIT", release]),
        LockStrategy.ADVISORY_AND_ROW: ([get], locking, ["COMMIT", release]),
        LockStrategy.TABLE: (["LOCK TABLES t WRITE"], plain, ["COMMIT", "UNLOCK TABLES"]),
    }[strategy]


def growth(bench: Bench) -> None:
    """Is the cost of one operation the same in a table of a million rows?"""
    print("\ncost per operation as the table grows (one writer, op/s)")
    insert, modify = bench.insert()[0], bench.locked(LockStrategy.ROW, reading=True)[0]
    for target in (10_000, 100_000, 1_000_000):
        have: Any = bench.admin.execute(text("SELECT COUNT(*) FROM t")).scalar()
        while have < target:
            step = min(20_000, target - have)
            rows = ", ".join(f"({key}, 0, 'x')" for key in itertools.islice(bench.ids, step))
            bench.admin.exec_driver_sql(f"INSERT INTO t VALUES {rows}")
            have += step
        rates = [bench.rate_of(who) for who in (insert, modify)]
        print(f"  {target:9,} rows   INSERT {rates[0]:8,.0f}   modify under ROW {rates[1]:8,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short rounds, one writer only")
    parser.add_argument("--driver", default="pymysql", choices=["pymysql", "mysqldb"])
    parser.add_argument("--flavour", default=None, choices=[flavour.value for flavour in MySQLFlavour])
    parser.add_argument("--only", default="", help="races whose title begins with this")
    parser.add_argument("--growth", action="store_true", help="also grow the table to a million rows")
    args = parser.parse_args()

    flavour = MySQLFlavour(args.flavour) if args.flavour else None
    with MySQLServer(flavour=flavour) as server:
        bench = Bench(server, args.driver, quick=args.quick, only=args.only)
        print(f"{server.name} {server.version}, {args.driver}")
        for threads in (1,) if args.quick else (1, WRITERS):
            bench.race("INSERT", bench.insert, threads=threads)
            bench.race("INSERT, many", bench.many, threads=threads)
            for reading in (False, True):
                for strategy in LockStrategy:
                    # Eight writers of one table under TABLE only wait for each other: nothing to compare.
                    if threads == 1 or strategy is not LockStrategy.TABLE:
                        verb = "modify" if reading else "UPDATE"
                        bench.race(
                            f"{verb}, {strategy.name}",
                            partial(bench.locked, strategy, reading=reading),
                            threads=threads,
                        )
        if args.growth:
            growth(bench)


if __name__ == "__main__":
    main()
