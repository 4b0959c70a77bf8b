"""The lifecycle of a relay: run, stop, health, close."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from tests.unit.transactional.conftest import Recorder

from conquiet.core.backoff import Backoff
from conquiet.db.session import DbSession
from conquiet.errors import LifecycleError
from conquiet.testing import wait_until
from conquiet.transactional import Outbox, OutboxMessage, OutboxRelay, PublishOutcome

if TYPE_CHECKING:
    from conquiet.core.lifecycle import Worker

SHORT = Backoff(base_s=0.001, cap_s=0.001)


def add(engine: Engine, *names: str) -> None:
    with DbSession(engine) as session:
        for name in names:
            Outbox().add(session, "t", {"name": name})


@contextmanager
def running(relay: OutboxRelay) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=relay.run)
    thread.start()
    try:
        yield thread
    finally:
        relay.stop()
        thread.join(30)
        relay.close()


def test_a_relay_is_a_worker(engine: Engine, recorder: Recorder) -> None:
    worker: Worker = OutboxRelay(engine, {"t": recorder})

    assert worker.abandoned == 0


def test_before_the_start_it_is_not_ready_and_says_so(engine: Engine, recorder: Recorder) -> None:
    health = OutboxRelay(engine, {"t": recorder}).health()

    assert (health.ready, health.reason) == (False, "not started")


def test_it_is_ready_only_while_its_targets_are_available(engine: Engine, recorder: Recorder) -> None:
    recorder.break_with = OSError("gone")
    with running(OutboxRelay(engine, {"t": recorder}, poll_s=0.01, backoff=SHORT)) as _:
        pass
    relay = OutboxRelay(engine, {"t": recorder}, poll_s=0.01, backoff=SHORT)
    with running(relay):
        wait_until(lambda: relay.health().ready, message="nothing to publish: ready")

        add(engine, "a")
        wait_until(lambda: not relay.health().ready, message="target unavailable")
        reason = relay.health().reason
        recorder.break_with = None
        wait_until(lambda: relay.health().ready, message="target available again")

    assert reason == "target unavailable: t"
    assert recorder.names == ["a"]
    assert relay.health().reason == "stopped"


def test_an_outbox_that_cannot_be_read_is_the_reason(recorder: Recorder) -> None:
    relay = OutboxRelay(create_engine("sqlite:////nonexistent/db.sqlite"), {"t": recorder}, poll_s=0.01, backoff=SHORT)

    with running(relay):
        wait_until(lambda: "cannot be read" in relay.health().reason, message="reported")

    assert not relay.health().ready


def test_stop_finishes_the_batch_and_a_second_run_is_refused(engine: Engine, recorder: Recorder) -> None:
    add(engine, "a", "b")
    relay = OutboxRelay(engine, {"t": recorder}, poll_s=600.0)

    with running(relay) as thread:
        wait_until(lambda: len(recorder.names) == 2, message="published")
        relay.stop()
        thread.join(60)

        assert not thread.is_alive(), "a stop ends the pause"
        with pytest.raises(LifecycleError):
            relay.run()


def test_a_second_stop_ends_a_batch_that_goes_one_by_one(engine: Engine) -> None:
    tried: list[int] = []

    class Breaking:
        def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
            if len(messages) > 1:
                raise ValueError
            tried.append(messages[0].seq)
            relay.stop()
            relay.stop()
            return [(PublishOutcome.PUBLISHED, "")]

    add(engine, "a", "b", "c")
    relay = OutboxRelay(engine, {"t": Breaking()})
    relay.run()

    assert len(tried) == 1
    assert Outbox().backlog(engine)["t"].waiting == 2


def test_it_may_be_closed_twice(engine: Engine, recorder: Recorder) -> None:
    with OutboxRelay(engine, {"t": recorder}) as relay:
        relay.close()
