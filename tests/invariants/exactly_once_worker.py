"""Workers for test_effect_exactly_once: real ones, with named places where they can be stopped dead.

Not a test. Started once as a zygote that has everything imported; it forks a worker for each line it
reads, so that hundreds of kills do not cost hundreds of interpreter starts. A worker that is told to halt
at a point says so and waits there; what happens to it then is up to the test.

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

from conquiet.bridge import Inbox, Letter, Outbox, OutboxRelay, Outcome, Relayed, ToStream, by_outbox_id
from conquiet.bridge.desk import Desk
from conquiet.config import QueueConfig
from conquiet.db.session import DbSession
from conquiet.errors import DbWriteError, QueueError
from conquiet.kernel.backoff import Backoff
from conquiet.queue import QueueConsumer, QueueMessage, RedisStreamsQueue

SETTINGS: dict[str, Any] = json.loads(sys.argv[1])
STALE_MS = 300
BUG: str = SETTINGS["bug"]

_halt: str | None = None
_left = 0
_name = ""


def say(**facts: object) -> None:
    # One write of less than PIPE_BUF is not torn, however many workers share the pipe.
    os.write(1, (json.dumps({"pid": os.getpid(), **facts}) + "\n").encode())


def at(point: str) -> None:
    """Halt here if it is our point and our turn."""
    global _left  # noqa: PLW0603 - one worker, one counter
    if point != _halt:
        return
    _left -= 1
    if _left == 0:
        say(at=point, name=_name)  # with the name: this line may overtake the zygote's own
        signal.sigwait({signal.SIGUSR1})


# ------------------------------------------------------------------ the parts, with points in them
class PointedInbox(Inbox):
    @contextlib.contextmanager
    def once(self, session: DbSession, msg: Any) -> Iterator[bool]:
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


class PointedConsumer(QueueConsumer):
    def next(self, block_ms: int | None = None) -> QueueMessage | None:
        found = super().next(block_ms)
        if found is not None:
            at("read")
            if BUG == "ack-before-commit":
                super().ack(found)
        return found

    def ack(self, msg: QueueMessage) -> None:
        at("after-commit")
        super().ack(msg)
        at("after-ack")


class PointedTarget(ToStream):
    def publish(self, letters: Sequence[Letter]) -> list[tuple[Outcome, str]]:
        at("before-publish")
        verdicts = super().publish(letters)
        at("after-publish")
        return verdicts


class PointedDesk(Desk):
    def settle(self, session: DbSession, **settled: Any) -> None:
        super().settle(session, **settled)
        at("after-delete")


class DeletesFirst(OutboxRelay):
    """The planted bug: the rows are gone before they are published."""

    def _one_batch(self, session: DbSession, route: Any) -> Relayed:
        letters = self._claim(session, route)
        if letters:
            route.desk.settle(session, published=[letter.seq for letter in letters], refused=[])
            session.connection.commit()
            self._publish(route, letters)
        return Relayed(len(letters))


# ------------------------------------------------------------------ the work
def transfer(msg: QueueMessage, session: DbSession) -> None:
    """Move money, and tell the ledger. Rows are locked in the order of their ids, so transfers do not deadlock."""
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
    """What the ledger does with it."""
    move = msg.payload
    session.execute("UPDATE ledger SET total = total + :amount WHERE id = 1", {"amount": move["amount"]})
    at("mid-handler")
    session.execute("INSERT INTO ledger_effect (transfer) VALUES (:id)", {"id": move["transfer"]})


Handler = Callable[[QueueMessage, DbSession], None]


def consume(engine: Engine, stream: str, name: str, handler: Handler, inbox: Inbox) -> None:
    """What a worker does: its own unfinished messages first, then new ones."""
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
    with redis.Redis.from_url(SETTINGS["redis"]) as client, QueueConsumer(client, config) as consumer:
        consumer.run_claim_stale(handler=handler, engine=engine, min_idle_ms=STALE_MS, interval_s=0.1, inbox=inbox)


def relay(engine: Engine) -> None:
    config = QueueConfig(SETTINGS["ledger"], "g", "relay")
    with redis.Redis.from_url(SETTINGS["redis"]) as client, RedisStreamsQueue(client, config) as queue:
        kind = DeletesFirst if BUG == "relay-deletes-first" else OutboxRelay
        backoff = Backoff(base_s=0.05, cap_s=0.2)
        with kind(engine, {"ledger": PointedTarget(queue)}, batch=5, poll_s=0.02, backoff=backoff) as running:
            running.run()


def work(role: str, name: str) -> None:
    """Work until killed. Errors that a real worker would be restarted over are answered by going on."""
    import conquiet.bridge.relay

    conquiet.bridge.relay.Desk = PointedDesk  # type: ignore[attr-defined]
    # Without TLS, which MySQL offers by itself: the proxy has to find the word COMMIT.
    arguments = {"init_command": "SET SESSION innodb_lock_wait_timeout=2", "ssl_disabled": True}
    engine = create_engine(SETTINGS["db"], pool_pre_ping=True, connect_args=arguments)
    orders, entries = PointedInbox(), PointedInbox(key=by_outbox_id)
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
            say(error=type(error).__name__)
            time.sleep(0.05)


def main() -> None:
    global _halt, _left, _name  # set once in each child
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    create_engine(SETTINGS["db"])  # for the driver that it imports: here, and not in each worker
    # Children that were killed stay zombies until the end: no pid of ours can become somebody else's meanwhile.
    children: list[int] = []
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                _halt, _left, _name = order["halt"], order["nth"], order["name"]
                work(order["role"], order["name"])
            except BaseException:  # noqa: BLE001 - the test has to hear of it
                say(crash=traceback.format_exc()[-800:])
            os._exit(1)
        children.append(pid)
        os.write(1, (json.dumps({"pid": pid, "name": order["name"]}) + "\n").encode())
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
