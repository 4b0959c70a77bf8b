"""Workers that halt at a named step of their k-th message, to be killed there. Not a test.

    python killed_worker.py REDIS_URL DB_URL STREAM HISTORY

For each line ``CONSUMER STEP K`` it forks a worker, so that a hundred of them import everything once. The worker
prints ``STEP message-id pid`` and then waits for ever. With the step ``none`` it works until nothing is left, the
stale messages of the others included, and prints ``done``. The next line is read when the worker has ended.
"""

import os
import sys
import time
from typing import Any

import redis
from sqlalchemy import create_engine
from tests.invariants import wire
from tests.invariants.preloading import preload
from tests.invariants.recorder import Recorder

from conquiet import QueueConfig, QueueConsumer, QueueMessage
from conquiet.db import DbSession

record = Recorder(sys.argv[4])


class KillPoint:
    def __init__(self, step: str, message_number: int) -> None:
        self._step, self._number = step, message_number
        self._seen = 0

    def new_message(self) -> None:
        self._seen += 1

    def here(self, step: str, message_id: str) -> None:
        if step == self._step and self._seen == self._number:
            record("reached", point=step)
            print(step, message_id, os.getpid(), flush=True)  # noqa: T201 - the test waits for this line
            time.sleep(600)


def work(name: str, step: str, number: str) -> None:
    redis_url, db_url, stream = sys.argv[1:4]
    wire.note_commits(record)
    engine = create_engine(db_url)
    kill_point = KillPoint(step, int(number))
    consumer = QueueConsumer(redis.Redis.from_url(redis_url), QueueConfig(stream, "billing", name, block_ms=500))
    fetch, ack = consumer.next, consumer.ack
    queue: Any = consumer.queue
    call = queue._call
    current = ""

    def fetching(block_ms: int | None = None) -> QueueMessage | None:
        nonlocal current
        message = fetch(block_ms)
        if message is None:
            consumer.stop()
        else:
            kill_point.new_message()
            current = message.id
            record("deliver", id=current)
            kill_point.here("read", current)
        return message

    def handler(message: QueueMessage, session: DbSession) -> None:
        wire.handle(message.id)
        kill_point.here("handler", message.id)
        session.execute("INSERT INTO effects VALUES (:id)", {"id": message.id})
        session.before_commit(lambda _: kill_point.here("commit", message.id))

    def acking(message: QueueMessage) -> None:
        kill_point.here("ack", message.id)
        record("ack", id=message.id)
        ack(message)

    def calling(command: str, packed: bytes, **options: Any) -> Any:
        reply = call(command, packed, **options)
        if command == "XACK":  # the server has done it, and its reply has not arrived
            kill_point.here("acked", current)
        return reply

    queue._call = calling
    consumer.next, consumer.ack = fetching, acking  # type: ignore[method-assign, assignment]
    if step == "none":
        while batch := consumer.claim_stale(min_idle_ms=1, count=100):
            for message in batch:
                record("deliver", id=message.id)
                with DbSession(engine) as session:
                    handler(message, session)
                record("ack", id=message.id)
                ack(message)
    consumer.run(handler=handler, engine=engine)
    print("done", flush=True)  # noqa: T201 - the same


def main() -> None:
    preload(sys.argv[2])
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work(*line.split())
                code = 0
            finally:
                os._exit(code)  # the rest of this function is the parent's
        if os.WIFEXITED(status := os.waitpid(pid, 0)[1]) and status:
            print("failed", flush=True)  # noqa: T201 - the test is waiting for a line


if __name__ == "__main__":
    main()
