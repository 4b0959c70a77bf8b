"""Worker processes for the database invariants: started once, forks itself for each job that it reads.

    → {"task": "count", "url": …, "strategy": "row", "workers": 4, "times": 100, …}
    ← [{"1": 31, "2": 27, …}, …]

All workers of a job start together. Each reports its acknowledged writes; the test compares them with the table. A job
with a "step" is different: one writer goes there, reports its process id, and the test kills it.
"""

import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sqlalchemy import Engine, create_engine, event
from tests.invariants.preloading import preload
from tests.invariants.recorder import Recorder

from conquiet.config import DbConfig
from conquiet.db import (
    AdvisoryLock,
    DbOperation,
    DbOperationType,
    DbSession,
    DbWriter,
    LockStrategy,
    RowLock,
    occ_update,
    retry_on_conflict,
    statement_execution,
)
from conquiet.db.locking import MySQLTableLockBackend
from conquiet.db.writer_pool import Checkout

Report = dict[str, int]
Task = Callable[[Engine, dict[str, Any], random.Random], Report]


def count(engine: Engine, job: dict[str, Any], rng: random.Random) -> Report:
    """Raise counters by one, read and write apart; report how often for each row."""
    done: Counter[str] = Counter()
    record = Recorder(job["history"])

    def raised(found: Mapping[str, Any]) -> dict[str, int]:
        # Inside the lock, from its first moment to its last but one: what overlaps here overlaps in the lock.
        record("lock", name=found["id"])
        record("unlock", name=found["id"])
        return {"n": found["n"] + 1}

    for _ in range(job["times"]):
        row = rng.randint(1, job["rows"])
        if job["strategy"] == "occ":
            retry_on_conflict(engine, partial(_raise_optimistically, row=row), attempts=1000)
        else:
            writer = DbWriter(engine, DbConfig("counters"), LockStrategy(job["strategy"]))
            assert writer.modify(row, raised).rows == 1
        record("add", row=row, by=1, ok=True)
        done[str(row)] += 1
    return done


def _raise_optimistically(session: DbSession, *, row: int) -> None:
    found = session.fetch_one("SELECT n, version FROM counters WHERE id = :id", {"id": row})
    assert found is not None
    occ_update(session, "counters", row, {"n": found["n"] + 1}, expected_version=found["version"])


def transfer(engine: Engine, job: dict[str, Any], rng: random.Random) -> Report:
    """Move money between two accounts in one transaction; report each account's change."""
    change: Counter[str] = Counter()
    record = Recorder(job["history"])
    for _ in range(job["times"]):
        source, target = rng.sample(range(1, job["rows"] + 1), 2)
        amount = rng.randint(1, 10)
        move = partial(_move, strategy=job["strategy"], source=source, target=target, amount=amount)
        retry_on_conflict(engine, move, attempts=1000)
        record("add", row=source, by=-amount, ok=True)
        record("add", row=target, by=amount, ok=True)
        change[str(source)] -= amount
        change[str(target)] += amount
    return change


def _move(session: DbSession, *, strategy: str, source: int, target: int, amount: int) -> None:
    both = sorted((source, target))  # always in the same order, so that two transfers never wait crosswise
    if strategy == "table":
        lock, op = MySQLTableLockBackend(), DbOperation("counters", DbOperationType.UPDATE, 0, {})
        lock.acquire(session.connection, op)
        session.on_close(lambda connection: lock.release(connection, op))
    if "advisory" in strategy:
        for account in both:
            AdvisoryLock(session, f"account {account}").acquire()
    if "row" in strategy:
        found = {account: RowLock(session, "counters", {"id": account}).acquire()[0] for account in both}
    else:
        rows = session.fetch_all("SELECT * FROM counters WHERE id IN (:a, :b)", {"a": source, "b": target})
        found = {row["id"]: row for row in rows}
    for account, difference in ((source, -amount), (target, amount)):
        new = {"n": found[account]["n"] + difference}
        if strategy == "occ":
            occ_update(session, "counters", account, new, expected_version=found[account]["version"])
        else:
            session.execute("UPDATE counters SET n = :n WHERE id = :id", {"n": new["n"], "id": account})


def insert(engine: Engine, job: dict[str, Any], rng: random.Random) -> Report:
    """Insert the same ids as every other worker, singly and in batches; report who was first how often."""
    writer = DbWriter(engine, DbConfig("events"), LockStrategy.ROW)
    ops = [DbOperation("events", DbOperationType.INSERT, i, {"id": i, "payload": "x"}) for i in range(job["times"])]
    rng.shuffle(ops)
    singly, together = ops[: len(ops) // 4], ops[len(ops) // 4 :]
    outcomes = [writer.execute(op) for op in singly]
    for start in range(0, len(together), 50):
        outcomes += writer.execute_many(together[start : start + 50])
    return {"first": sum(o.rows for o in outcomes), "duplicate": sum(o.duplicate for o in outcomes)}


def pause_at(engine: Engine, job: dict[str, Any]) -> None:
    """Report the process id when the named step is reached, and wait there to be killed.

    At the step "in a statement" the server waits, and the test kills the process meanwhile.
    """

    def reached(step: str) -> None:
        if step == job["step"]:
            sys.stdout.write(f"{os.getpid()}\n")
            sys.stdout.flush()
            signal.pause()

    if job["step"] == "in a statement":
        sys.stdout.write(f"{os.getpid()}\n")
        sys.stdout.flush()
    if job["strategy"] == "occ":
        event.listen(engine, "before_cursor_execute", lambda *args: reached(_STEPS_BEFORE.get(_kind(args[2]), "")))
        event.listen(engine, "after_cursor_execute", lambda *args: reached(_STEPS_AFTER.get(_kind(args[2]), "")))
        with DbSession(engine) as session:
            session.on_close(lambda _: reached("after commit"))
            _raise_optimistically(session, row=job["row"])
        return

    send, commit = statement_execution._send, Checkout.commit

    def watched_send(raw: Any, string: str, params: Any) -> statement_execution.StatementResult:
        reached(_STEPS_BEFORE.get(_kind(string), ""))
        answer = send(raw, string, params)
        reached(_STEPS_AFTER.get(_kind(string), ""))
        return answer

    def watched_commit(checkout: Checkout) -> None:
        commit(checkout)
        reached("after commit")

    statement_execution._send = watched_send
    setattr(Checkout, "commit", watched_commit)  # noqa: B010 - mypy forbids the plain assignment
    writer = DbWriter(engine, DbConfig("counters"), LockStrategy(job["strategy"]))
    writer.modify(job["row"], lambda found: {"n": found["n"] + 1})


_STEPS_BEFORE = {"lock": "before lock", "update": "before statement"}
_STEPS_AFTER = {"lock": "after lock", "update": "before commit"}


def _kind(statement: str) -> str:
    if statement.startswith(("SELECT GET_LOCK", "LOCK TABLES")) or statement.endswith("FOR UPDATE"):
        return "lock"
    return "update" if statement.startswith("UPDATE") else ""


TASKS: dict[str, Task] = {"count": count, "transfer": transfer, "insert": insert}


def die(job: dict[str, Any]) -> str:
    """Fork a writer that waits at its step; return when it was killed."""
    child = os.fork()
    if child == 0:
        pause_at(create_engine(job["url"], pool_size=1), job)
        os._exit(1)  # it was not killed
    _, status = os.waitpid(child, 0)
    return "killed" if os.WIFSIGNALED(status) else "ended by itself"


def storm(job: dict[str, Any]) -> str:
    """Run the job in the requested number of forked processes."""
    start_reading, start_writing = os.pipe()
    readers: list[int] = []
    for number in range(job["workers"]):
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.close(start_writing)
            os.read(start_reading, 1)  # returns when the parent closes its end: all start together
            engine = create_engine(job["url"], pool_size=1)
            report = TASKS[job["task"]](engine, job, random.Random(number))
            engine.dispose()
            os.write(writing, json.dumps(report).encode())
            os._exit(0)
        os.close(writing)
        readers.append(reading)
    os.close(start_reading)
    os.close(start_writing)
    reports = []
    for reader in readers:
        with os.fdopen(reader, "rb") as pipe:
            reports.append(pipe.read())
    failed = [status for _ in readers if (status := os.wait()[1]) != 0]
    if failed:
        return json.dumps(f"{len(failed)} workers failed")
    return json.dumps([json.loads(report) for report in reports])


def main() -> None:
    """Do each job on standard input, one after the other, and reply with a line."""
    for line in sys.stdin:
        job: dict[str, Any] = json.loads(line)
        preload(job["url"])
        sys.stdout.write((die(job) if "step" in job else storm(job)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
