"""Workers for test_batches_exactly_once: real ones, which kill themselves at a named point inside a batch.

Not a test. A zygote that has everything imported forks a worker for each line it reads and prints how it ended:

    → {"name": "w1", "mode": "batch", "point": "after-inbox", "nth": 3}
    ← {"name": "w1", "status": -9}

``bug`` plants a mistake that the test has to find.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

import redis.asyncio
from sqlalchemy import create_engine
from tests.invariants import wire
from tests.invariants.preloading import preload
from tests.invariants.recorder import Recorder

from conquiet.core import batch_run
from conquiet.db.session import DbSession
from conquiet.processor import Processor, ProcessorSettings
from conquiet.runtime import RuntimeSettings
from conquiet.runtime.acknowledger import Acknowledger
from conquiet.transactional import Inbox, batch_source, for_processor_batch, for_processor_shared_transaction
from conquiet.transactional.inbox_rows import InboxRows
from conquiet.transactional.unit_of_work import UnitOfWork

SETTINGS: dict[str, Any] = json.loads(sys.argv[1])
BUG: str = SETTINGS["bug"]
RECORD = Recorder(SETTINGS["history"])
INSERT = "INSERT INTO effects (message_id, worker) VALUES (:id, :worker)"

_point = ""
_left = 0


def at(point: str) -> None:
    """Die here if it is our point and our turn."""
    global _left  # noqa: PLW0603 - one worker, one counter
    if point == _point:
        _left -= 1
        if _left == 0:
            RECORD("reached", point=point)
            RECORD("fault", kind="kill -9", target=os.getpid(), point=point)
            os.kill(os.getpid(), signal.SIGKILL)


def pack(ids: Iterable[str]) -> list[Any]:
    """Return how the messages with these ids are named in the history."""
    return list(ids)


class PointedRows(InboxRows):
    def check_many(self, unit: UnitOfWork, msgs: Sequence[Any]) -> list[bool]:
        wire.handle(*pack(msg.id for msg in msgs))
        at("before-inbox")
        first_time = super().check_many(unit, msgs)
        at("after-inbox")
        if BUG == "no-inbox":
            return [True] * len(first_time)
        return first_time


class PointedInbox(Inbox):
    def __init__(self) -> None:
        super().__init__()
        self.rows = PointedRows(self.table, None, compare=None)


def plant() -> None:
    """Put the bug in."""
    if BUG == "charge-neighbours":

        async def run(self: Any) -> list[Any]:
            error = await self._try(list(range(len(self._members))))
            return [error if outcome is batch_run._UNDECIDED else outcome for outcome in self._outcomes]

        batch_run.BatchRun.run = batch_run.BatchRun.search = run  # type: ignore[method-assign]
    elif BUG == "keep-savepoint":

        async def in_savepoint(self: Any, session: Any, ordinal: int, what: Any, work: Any) -> Any:
            try:
                await work(session, what)
            except ValueError as error:  # its rows stay in the transaction
                return error
            return None

        batch_source.Batches._in_savepoint = in_savepoint  # type: ignore[method-assign]
    elif BUG == "ack-before-commit":
        confirm = DbSession._commit

        def commit(self: DbSession, conn: Any) -> None:
            for ack in _acks:
                ack()
            _acks.clear()
            at("before-commit")
            confirm(self, conn)

        DbSession._commit = commit  # type: ignore[method-assign]


_acks: list[Any] = []


async def work(name: str, mode: str) -> None:
    engine = create_engine(SETTINGS["db_url"])
    client = redis.asyncio.Redis.from_url(SETTINGS["redis_url"])
    processor = Processor(
        client,
        [SETTINGS["stream"]],
        concurrency=2,
        consumer_id=f"{name}-{os.getpid()}",
        settings=ProcessorSettings(retention=None),
        runtime=RuntimeSettings(claim_idle_ms=1_000, max_deliveries=100),
    )

    def handle_one(ctx: Any, session: DbSession) -> None:
        if BUG != "ack-before-commit":
            session.before_commit(lambda _: at("before-commit"))
        session.execute(INSERT, {"id": ctx.id, "worker": name})
        if BUG == "ack-before-commit":
            _acks.append(ctx.ack)
        at("mid-handler")
        if ctx.data["poison"]:
            raise ValueError

    def handle(contexts: list[Any], session: DbSession) -> None:
        for ctx in contexts:
            handle_one(ctx, session)

    inbox = PointedInbox()
    made = (
        for_processor_batch(handle, engine=engine, inbox=inbox)
        if mode == "batch"
        else for_processor_shared_transaction(handle_one, engine=engine, inbox=inbox)
    )

    def committed(contexts: list[Any]) -> Any:
        ids = [ctx.id for ctx in contexts]
        RECORD("deliver", ids=ids)
        try:
            outcomes = made(contexts)
        except BaseException:
            RECORD("release", ids=ids)  # nothing has happened: the engine runs them again
            raise
        if failed := [one for one, outcome in zip(ids, outcomes or (), strict=False) if outcome is not None]:
            RECORD("retry", ids=failed)
        at("after-commit")
        return outcomes

    processor.handler("paid", batch=SETTINGS["batch"], within_s=0.01)(committed)
    await run(processor)


async def run(processor: Processor) -> None:
    """Run until a signal comes, with the last point of a batch."""
    confirmed = Acknowledger.confirm

    def confirm(self: Any, batch: Any, replies: Any) -> None:
        at("after-ack")
        confirmed(self, batch, replies)

    Acknowledger.confirm = confirm  # type: ignore[method-assign]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: processor.stop())
    await processor.start()


def main() -> None:
    logging.disable(logging.CRITICAL)
    preload(SETTINGS["db_url"])
    plant()
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            global _point, _left
            _point, _left = order.get("point", ""), order.get("nth", 1)
            sys.stdin.close()
            RECORD.watch(0.25)
            wire.note_commits(RECORD)
            wire.note_stream_acks(RECORD, lambda messages: pack(message.data["id"] for message in messages))
            status = 1
            try:
                asyncio.run(work(order["name"], order["mode"]))
                status = 0
            except BaseException as error:  # noqa: BLE001 - the storm has to know every error
                RECORD("error", text=type(error).__name__)
                traceback.print_exc()
            finally:
                os._exit(status)
        say(name=order["name"], pid=pid)
        threading.Thread(target=wait, args=(pid, order["name"]), daemon=True).start()


def wait(pid: int, name: str) -> None:
    _, status = os.waitpid(pid, 0)
    say(name=name, ended=pid, status=os.waitstatus_to_exitcode(status))


def say(**facts: object) -> None:
    os.write(1, (json.dumps(facts) + "\n").encode())


if __name__ == "__main__":
    main()
