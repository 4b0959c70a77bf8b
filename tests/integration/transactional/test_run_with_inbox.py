"""``QueueConsumer.run`` with an inbox: commit, then ack, and what happens when something goes wrong in between."""

from collections.abc import Callable

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine

from conquiet.db.session import DbSession
from conquiet.errors import CommitUnknownError, ConflictError, LeaseLostError
from conquiet.queue import QueueConsumer, QueueMessage
from conquiet.testing import FaultProxy, wait_until
from conquiet.transactional import Inbox, LeaseCheck


@pytest.fixture
def counted(engine: Engine) -> Callable[[], int]:
    with DbSession(engine) as session:
        session.execute("CREATE TABLE effect (id INT AUTO_INCREMENT PRIMARY KEY, message VARCHAR(40))")

    def count() -> int:
        with DbSession(engine) as session:
            return int(session.execute_scalar("SELECT COUNT(*) FROM effect"))

    return count


def handle(msg: QueueMessage, session: DbSession) -> None:
    session.execute("INSERT INTO effect (message) VALUES (:id)", {"id": msg.id})


def stop_when_idle(consumer: QueueConsumer) -> None:
    """End ``run_claim_stale`` where it would sleep, once nothing is pending. A message is stale after a millisecond."""

    def sleep(_duration_s: float) -> None:
        if consumer.backlog().pending == 0:
            consumer.stop()

    consumer.sleep = sleep  # type: ignore[assignment, method-assign]


def last_one(consumer: QueueConsumer) -> Callable[[QueueMessage, DbSession], None]:
    def handler(msg: QueueMessage, session: DbSession) -> None:
        handle(msg, session)
        consumer.stop()

    return handler


def test_a_message_is_handled_committed_and_acknowledged(
    engine: Engine, make_consumer: Callable[..., QueueConsumer], counted: Callable[[], int]
) -> None:
    consumer = make_consumer()
    consumer.queue.enqueue({})

    consumer.run(handler=last_one(consumer), engine=engine, inbox=Inbox())

    assert counted() == 1
    assert consumer.backlog().pending == 0


@pytest.mark.parametrize(("inbox", "effects"), [(Inbox(), 1), (None, 2)])
def test_a_lost_ack_means_two_effects_only_without_an_inbox(
    engine: Engine,
    make_consumer: Callable[..., QueueConsumer],
    counted: Callable[[], int],
    inbox: Inbox | None,
    effects: int,
) -> None:
    """Without the inbox the test sees the duplicate, so it does detect one."""

    class Died(Exception):  # noqa: N818
        pass

    def die(_: QueueMessage) -> None:
        raise Died

    consumer, rescuer = make_consumer(name="one"), make_consumer(name="two")
    consumer.queue.enqueue({})
    consumer.ack = die  # type: ignore[assignment,method-assign]
    with pytest.raises(Died):
        consumer.run(handler=handle, engine=engine, inbox=inbox)
    assert rescuer.backlog().pending == 1

    stop_when_idle(rescuer)
    rescuer.run_claim_stale(handler=handle, engine=engine, min_idle_ms=1, inbox=inbox)

    assert counted() == effects
    assert rescuer.backlog().pending == 0


def test_after_a_lost_commit_reply_the_inbox_decides(
    engine: Engine,
    db_url: str,
    make_engine: Callable[..., Engine],
    make_consumer: Callable[..., QueueConsumer],
    fault_proxy: Callable[[str], FaultProxy],
    counted: Callable[[], int],
) -> None:
    proxy = fault_proxy(db_url)
    through = make_engine(proxy.url_for(db_url))
    consumer, rescuer = make_consumer(name="one"), make_consumer(name="two")
    consumer.queue.enqueue({})

    def handler(msg: QueueMessage, session: DbSession) -> None:
        handle(msg, session)
        proxy.drop_next_reply(after_request_matching=b"COMMIT")
        consumer.stop()  # the run ends here if the fault does not strike

    with pytest.raises(CommitUnknownError):
        consumer.run(handler=handler, engine=through, inbox=Inbox())

    assert counted() == 1, "the server did commit"
    assert rescuer.backlog().pending == 1, "and yet the message is not acknowledged"
    stop_when_idle(rescuer)
    rescuer.run_claim_stale(handler=handle, engine=engine, min_idle_ms=1, inbox=Inbox())
    assert counted() == 1
    assert rescuer.backlog().pending == 0


def test_a_commit_that_never_arrived_is_done_again(
    engine: Engine,
    db_url: str,
    make_engine: Callable[..., Engine],
    make_consumer: Callable[..., QueueConsumer],
    fault_proxy: Callable[[str], FaultProxy],
    counted: Callable[[], int],
) -> None:
    """The client sees the same as above. Only the inbox distinguishes the two."""
    proxy = fault_proxy(db_url)
    through = make_engine(proxy.url_for(db_url))
    consumer, rescuer = make_consumer(name="one"), make_consumer(name="two")
    consumer.queue.enqueue({})

    def handler(msg: QueueMessage, session: DbSession) -> None:
        handle(msg, session)
        proxy.drop_next_request(matching=b"COMMIT")
        consumer.stop()  # the run ends here if the fault does not strike

    with pytest.raises(CommitUnknownError):
        consumer.run(handler=handler, engine=through, inbox=Inbox())

    assert counted() == 0
    stop_when_idle(rescuer)
    rescuer.run_claim_stale(handler=handle, engine=engine, min_idle_ms=1, inbox=Inbox())
    assert counted() == 1
    assert rescuer.backlog().pending == 0


def test_a_message_that_another_worker_runs_stays_pending(
    engine: Engine,
    db_url: str,
    make_engine: Callable[..., Engine],
    make_consumer: Callable[..., QueueConsumer],
    counted: Callable[[], int],
) -> None:
    consumer, rescuer = make_consumer(name="one"), make_consumer(name="two")
    consumer.queue.enqueue({})
    msg = consumer.next()
    assert msg is not None
    inbox = Inbox()

    with DbSession(engine) as session, inbox.once(session, msg):
        handle(msg, session)
        with pytest.raises(ConflictError):
            rescuer.run_claim_stale(
                handler=handle,
                engine=make_engine(db_url, lock_wait_s=1),
                min_idle_ms=1,
                interval_s=0.01,
                inbox=inbox,
            )

    assert rescuer.backlog().pending == 1
    assert counted() == 1


def test_a_lease_check_rolls_back_a_claimed_message(
    engine: Engine, make_consumer: Callable[..., QueueConsumer], counted: Callable[[], int]
) -> None:
    slow, quick = make_consumer(name="slow"), make_consumer(name="quick")
    slow.queue.enqueue({})

    def handler(msg: QueueMessage, session: DbSession) -> None:
        handle(msg, session)
        wait_until(
            lambda: len(quick.claim_stale(1)) == 1, message="the message changes hands while it is being handled"
        )

    with pytest.raises(LeaseLostError):
        slow.run(handler=handler, engine=engine, inbox=LeaseCheck(slow.extend, Inbox()))

    assert counted() == 0
    assert slow.backlog().pending == 1


def test_an_engine_without_reset_on_return_saves_a_rollback(
    engine: Engine, db_url: str, make_consumer: Callable[..., QueueConsumer], counted: Callable[[], int]
) -> None:
    """A session ends its transaction itself, a failed one too, so nothing is left for the pool to reset."""

    def rollbacks() -> int:
        with DbSession(engine) as session:
            row = session.fetch_one("SHOW GLOBAL STATUS LIKE 'Com_rollback'")
            assert row is not None
            return int(row["Value"])

    def fail(msg: QueueMessage, session: DbSession) -> None:
        handle(msg, session)
        raise ZeroDivisionError

    def cost_of(used: Engine) -> int:
        consumer.queue.enqueue({})
        before = rollbacks()
        consumer._stopping = False
        consumer.run(handler=last_one(consumer), engine=used, inbox=Inbox())
        return rollbacks() - before

    consumer, rescuer = make_consumer(name="one"), make_consumer(name="two")
    lean = create_engine(db_url, pool_reset_on_return=None, pool_size=1, max_overflow=0)
    consumer.queue.enqueue({})
    with pytest.raises(ZeroDivisionError):
        consumer.run(handler=fail, engine=lean, inbox=Inbox())
    stop_when_idle(rescuer)
    rescuer.run_claim_stale(handler=handle, engine=lean, inbox=Inbox())

    assert counted() == 1
    assert cost_of(engine) - cost_of(lean) == 1
    assert counted() == 3
    assert consumer.backlog().pending == 0
    lean.dispose()
