"""Workers for test_effect_exactly_once: real ones, with named places where they can be stopped dead.

Not a test. Started once as a zygote that has everything imported; it forks a worker for each line it
reads, so that hundreds of kills do not cost hundreds of interpreter starts. A worker that has to halt at a point
reports it and waits there for the test.

    → {"role": "transfer", "name": "t1", "halt": "mid-handler", "nth": 3}
    ← {"pid": 4711, "name": "t1"}
    ← {"pid": 4711, "at": "mid-handler", "name": "t1"}

``bug`` plants a mistake that the test has to find.
"""

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import redis
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from tests.invariants import wire
from tests.invariants.preloading import preload
from tests.invariants.recorder import Recorder

from conquiet.config import QueueConfig
from conquiet.core.backoff import Backoff
from conquiet.db.session import DbSession
from conquiet.errors import DbWriteError, QueueError
from conquiet.queue import QueueConsumer, QueueMessage
from conquiet.transactional import (
    Inbox,
    Outbox,
    OutboxMessage,
    OutboxRelay,
    PublishOutcome,
    RelayStats,
    ToStream,
    by_outbox_id,
)
from conquiet.transactional.outbox_store import OutboxStore

SETTINGS: dict[str, Any] = json.loads(sys.argv[1])
STALE_MS = 300
BUG: str = SETTINGS["bug"]
record = Recorder(SETTINGS["history"])

_halt: str | None = None
_left = 0
_name = ""
_read = ""


def say(**facts: object) -> None:
    # One write of less than PIPE_BUF is atomic, for any number of workers that share the pipe.
    os.write(1, (json.dumps({"pid": os.getpid(), **facts}) + "\n").encode())


def at(point: str) -> None:
    """Halt here if it is our point and our turn."""
    global _left  # noqa: PLW0603 - one worker, one counter
    if point != _halt:
        return
    _left -= 1
    if _left == 0:
        record("reached", point=point)
        say(at=point, name=_name)  # with the name: this line may overtake the zygote's own
        signal.sigwait({signal.SIGUSR1})


# ------------------------------------------------------------------ the parts, with points in them
class PointedInbox(Inbox):
    stage = "transfer"

    @contextlib.contextmanager
    def once(self, session: DbSession, msg: Any) -> Iterator[bool]:  # type: ignore[override]  # points around it
        if msg.id != _read:  # claimed, or our own of before: the read of a new one is noted there
            record("deliver", id=msg.id, of=self.stage)
        wire.handle(msg.id, of=self.stage)
        at("before-inbox")
        session.before_commit(lambda _: at("before-commit"))
        if BUG == "no-inbox":
            yield True
        elif BUG == "inbox-after-handler":
            yield True
            with super().once(session, msg):
                pass
        else:
            with super().once(session, msg) as first_time:
                at("after-inbox")
                yield first_time


class NotingConsumer(QueueConsumer):
    @property
    def stage(self) -> str:
        return "book" if self.config.stream_key == SETTINGS["ledger"] else "transfer"

    def ack(self, msg: QueueMessage) -> None:
        record("ack", id=msg.id, of=self.stage)
        super().ack(msg)


class PointedConsumer(NotingConsumer):
    def next(self, block_ms: int | None = None) -> QueueMessage | None:
        since = round(time.monotonic(), 6)
        found = super().next(block_ms)
        if found is not None:
            global _read  # noqa: PLW0603 - one worker, one message
            _read = found.id
            record("deliver", id=_read, of=self.stage, since=since)
            at("read")
            if BUG == "ack-before-commit":
                super().ack(found)
        return found

    def ack(self, msg: QueueMessage) -> None:
        at("after-commit")
        super().ack(msg)
        at("after-ack")


class PointedTarget(ToStream):
    def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
        at("before-publish")
        results = super().publish(messages)
        at("after-publish")
        return results


class PointedStore(OutboxStore):
    def settle(self, session: DbSession, **settled: Any) -> None:
        super().settle(session, **settled)
        at("after-delete")


class DeletesFirst(OutboxRelay):
    """The planted bug: the rows are gone before they are published."""

    def _one_batch(self, session: DbSession, route: Any) -> RelayStats:
        messages = self._lock_batch(session, route)
        if messages:
            route.store.settle(session, published=[message.seq for message in messages], refused=[])
            session.connection.connection.commit()  # behind the session, which would notice and refuse
            route.publisher.publish(messages)
        return RelayStats(len(messages))


# ------------------------------------------------------------------ the work
def transfer(msg: QueueMessage, session: DbSession) -> None:
    """Move money, and write to the ledger. Rows are locked in the order of their ids, so transfers do not deadlock."""
    move = msg.payload
    changes = sorted([(move["from"], -move["amount"]), (move["to"], move["amount"])])
    for position, (account, amount) in enumerate(changes):
        session.execute(
            "UPDATE account SET balance = balance + :amount WHERE id = :id", {"amount": amount, "id": account}
        )
        if position == 0:
            at("mid-handler")
    session.execute("INSERT INTO transfer_effect (transfer) VALUES (:id)", {"id": move["transfer"]})
    Outbox().add(session, "ledger", move, key=str(move["from"]))


def book(msg: QueueMessage, session: DbSession) -> None:
    """The change in the ledger."""
    move = msg.payload
    session.execute("UPDATE ledger SET total = total + :amount WHERE id = 1", {"amount": move["amount"]})
    at("mid-handler")
    session.execute("INSERT INTO ledger_effect (transfer) VALUES (:id)", {"id": move["transfer"]})


Handler = Callable[[QueueMessage, DbSession], None]


def consume(engine: Engine, stream: str, name: str, handler: Handler, inbox: Inbox) -> None:
    """The work of a worker: its own unfinished messages first, then new messages."""
    global _read  # noqa: PLW0603 - nothing has been read in this life
    _read = ""
    config = QueueConfig(stream, "g", name, block_ms=50, claim_idle_ms=STALE_MS)
    with redis.Redis.from_url(SETTINGS["redis"]) as client, PointedConsumer(client, config) as consumer:
        for msg in consumer.recover_own():
            with DbSession(engine) as session, inbox.once(session, msg) as first_time:
                if first_time:
                    handler(msg, session)
            consumer.ack(msg)
        consumer.run(handler=handler, engine=engine, inbox=inbox)


def claim(engine: Engine, stream: str, name: str, handler: Handler, inbox: Inbox) -> None:
    """Take over what others have left behind, or are too slow with."""
    config = QueueConfig(stream, "g", name, block_ms=50, claim_idle_ms=STALE_MS)
    with redis.Redis.from_url(SETTINGS["redis"]) as client, NotingConsumer(client, config) as consumer:
        consumer.run_claim_stale(handler=handler, engine=engine, min_idle_ms=STALE_MS, interval_s=0.1, inbox=inbox)


def relay(engine: Engine) -> None:
    with redis.Redis.from_url(SETTINGS["redis"]) as client, PointedTarget(client, SETTINGS["ledger"]) as target:
        kind = DeletesFirst if BUG == "relay-deletes-first" else OutboxRelay
        backoff = Backoff(base_s=0.05, cap_s=0.2)
        with kind(engine, {"ledger": target}, batch=5, poll_s=0.02, backoff=backoff) as running:
            running.run()


def connect_arguments(url: str) -> dict[str, Any]:
    """Return what makes lock waits short, and keeps TLS away: the proxy has to find the word COMMIT."""
    if url.startswith("postgresql"):
        return {"options": "-c lock_timeout=2s", "sslmode": "disable"}
    return {"init_command": "SET SESSION innodb_lock_wait_timeout=2", "ssl_disabled": True}


def work(role: str, name: str) -> None:
    """Work until killed. After errors for which a real worker would be restarted, continue."""
    import conquiet.transactional.relay

    conquiet.transactional.relay.OutboxStore = PointedStore  # type: ignore[attr-defined]
    wire.note_commits(record)
    engine = create_engine(SETTINGS["db"], pool_pre_ping=True, connect_args=connect_arguments(SETTINGS["db"]))
    orders, entries = PointedInbox(), PointedInbox(key=by_outbox_id)
    entries.stage = "book"
    roles: dict[str, Callable[[], None]] = {
        "transfer": lambda: consume(engine, SETTINGS["orders"], name, transfer, orders),
        "book": lambda: consume(engine, SETTINGS["ledger"], name, book, entries),
        "claim-transfer": lambda: claim(engine, SETTINGS["orders"], name, transfer, orders),
        "claim-book": lambda: claim(engine, SETTINGS["ledger"], name, book, entries),
        "relay": lambda: relay(engine),
    }
    while True:
        try:
            roles[role]()
        except (DbWriteError, QueueError) as error:
            record("error", text=type(error).__name__)
            say(error=type(error).__name__)
            time.sleep(0.05)


def main() -> None:
    global _halt, _left, _name  # set once in each child
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    preload(SETTINGS["db"])
    # Children that were killed stay zombies until the end: no pid of ours can be given to another process meanwhile.
    children: list[int] = []
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                _halt, _left, _name = order["halt"], order["nth"], order["name"]
                work(order["role"], order["name"])
            except BaseException:  # noqa: BLE001 - the test has to know of it
                say(crash=traceback.format_exc()[-800:])
            os._exit(1)
        children.append(pid)
        os.write(1, (json.dumps({"pid": pid, "name": order["name"]}) + "\n").encode())
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
