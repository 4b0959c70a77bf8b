"""The relay on SQLite: order, refusals, parking, and its life from run to close."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from tests.unit.transactional.conftest import Recorder
from tests.unit.transactional.outbox_rows import NO_WAIT, add, rows

from conquiet.core.backoff import Backoff
from conquiet.core.lifecycle import BlockingLifecycle
from conquiet.db.session import DbSession
from conquiet.errors import (
    ConfigurationError,
    ConflictError,
    LifecycleError,
    QueueError,
)
from conquiet.testing import wait_until
from conquiet.transactional import (
    Outbox,
    OutboxMessage,
    OutboxRelay,
    PublishOutcome,
)

if TYPE_CHECKING:
    from conquiet.core.lifecycle import Worker


class Refusing:
    """A target that refuses everything, with the reason it is given."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
        return [(PublishOutcome.REFUSED, self.reason)] * len(messages)


def sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


SHORT = Backoff(base_s=0.001, cap_s=0.001)


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


def test_a_message_is_published_if_its_transaction_commits_and_only_then(engine: Engine, recorder: Recorder) -> None:
    add(engine, "committed")
    with pytest.raises(RuntimeError), DbSession(engine) as session:  # noqa: PT012 - one transaction
        Outbox().add(session, "t", {"name": "rolled back"})
        raise RuntimeError

    done = OutboxRelay(engine, {"t": recorder}).relay_once()

    assert recorder.names == ["committed"]
    assert done.published == 1
    assert rows(engine, "conquiet_outbox") == 0


def test_rows_of_other_targets_are_left_alone(engine: Engine, recorder: Recorder) -> None:
    add(engine, "theirs", target="elsewhere")

    OutboxRelay(engine, {"t": recorder}).drain()

    assert recorder.names == []
    assert rows(engine, "conquiet_outbox") == 1
    assert Outbox().backlog(engine)["elsewhere"].waiting == 1


def test_a_delayed_message_waits_and_holds_back_its_key_only(engine: Engine, recorder: Recorder) -> None:
    add(engine, "later", key="a", delay_s=60.0)
    add(engine, "behind it", key="a")
    add(engine, "other key", key="b")
    add(engine, "no key")

    OutboxRelay(engine, {"t": recorder}).drain()

    assert sorted(recorder.names) == ["no key", "other key"]


def test_many_rows_of_few_keys_keep_their_order_through_many_batches(engine: Engine, recorder: Recorder) -> None:
    with DbSession(engine) as session:
        for number in range(100):
            Outbox().add(session, "t", {"name": f"{number % 3}:{number}"}, key=str(number % 3))

    OutboxRelay(engine, {"t": recorder}, batch=7).drain()

    for key in "012":
        numbers = [int(name.split(":")[1]) for name in recorder.names if name.startswith(f"{key}:")]
        assert numbers == sorted(numbers)
    assert len(recorder.names) == 100


def test_a_blocked_key_with_many_rows_does_not_starve_others(engine: Engine, recorder: Recorder) -> None:
    add(engine, "blocks", key="a", delay_s=60.0)
    add(engine, *(f"tail-{number}" for number in range(60)), key="a")
    add(engine, "behind", key="b")

    OutboxRelay(engine, {"t": recorder}, batch=2).drain()

    assert recorder.names == ["behind"]


def test_a_poison_row_is_parked_with_its_reason_and_blocks_nothing(engine: Engine, recorder: Recorder) -> None:
    recorder.refuse = {"poison"}
    add(engine, "poison", key="a")
    add(engine, "same key", key="a")
    add(engine, "other")
    relay = OutboxRelay(engine, {"t": recorder}, max_attempts=3, backoff=NO_WAIT)

    first = relay.relay_once()

    assert recorder.names == ["other"]
    assert (first.published, first.refused, first.deferred) == (1, 1, 1)

    relay.drain()

    assert recorder.names == ["other", "same key"]
    (parked,) = Outbox().parked(engine)
    assert (parked.target, parked.attempts, parked.reason) == ("t", 3, "not wanted")

    recorder.refuse = set()
    assert Outbox().unpark(engine, parked.seq)
    assert not Outbox().unpark(engine, parked.seq), "it is not parked any more"
    relay.drain()
    assert recorder.names[-1] == "poison"


@pytest.mark.parametrize("error", [QueueError("gone"), OSError("gone")])
def test_an_unavailable_target_costs_no_attempt_and_delays_no_other(
    engine: Engine, recorder: Recorder, error: Exception
) -> None:
    down = type(recorder)()
    down.break_with = error
    add(engine, "a", target="down")
    add(engine, "b", target="t")
    relay = OutboxRelay(engine, {"down": down, "t": recorder}, max_attempts=1, backoff=NO_WAIT)

    for _ in range(5):
        relay.relay_once()

    assert recorder.names == ["b"]
    assert Outbox().parked(engine) == []
    down.break_with = None
    relay.drain()
    assert down.names == ["a"]


def test_a_target_that_breaks_over_one_message_is_given_the_others(engine: Engine) -> None:
    """A target of the user's may raise anything; which message was the reason shows when they go one by one."""

    class Brittle:
        def __init__(self) -> None:
            self.taken: list[str] = []

        def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
            if any(b"poison" in message.payload for message in messages):
                raise KeyError("poison")
            self.taken += [message.message_id for message in messages]
            return [(PublishOutcome.PUBLISHED, "")] * len(messages)

    target = Brittle()
    add(engine, "a", "poison", "b", key="k")
    add(engine, "c")

    relay = OutboxRelay(engine, {"t": target}, max_attempts=2, backoff=NO_WAIT)
    first = relay.relay_once()

    assert (first.published, first.refused, first.deferred) == (2, 1, 1), "what follows the poison under its key waits"

    relay.drain()

    assert len(set(target.taken)) == 3
    (parked,) = Outbox().parked(engine)
    assert parked.reason == "KeyError", "the text of an error may quote the payload"


def test_two_relays_on_sqlite_do_not_publish_the_same_row(engine: Engine, recorder: Recorder) -> None:
    class Watched:
        def publish(self, messages: Sequence[OutboxMessage]) -> list[tuple[PublishOutcome, str]]:
            with pytest.raises(ConflictError):
                OutboxRelay(engine, {"t": recorder}).relay_once()
            return [(PublishOutcome.PUBLISHED, "")] * len(messages)

    add(engine, "once")

    OutboxRelay(engine, {"t": Watched()}).drain()

    assert recorder.names == []
    assert rows(engine, "conquiet_outbox") == 0


def test_a_relay_without_targets_is_refused(engine: Engine) -> None:
    with pytest.raises(ConfigurationError):
        OutboxRelay(engine, {})


@pytest.mark.parametrize("wrong", [{"outbox": "conquiet_outbox"}, {"outbox": Outbox}, {"backoff": 3.0}])
def test_a_relay_with_an_argument_of_another_type_is_refused(engine: Engine, recorder: Recorder, wrong: Any) -> None:
    """A number as the backoff would end the relay when its target or the database is unavailable."""
    with pytest.raises(ConfigurationError, match="must be"):
        OutboxRelay(engine, {"t": recorder}, **wrong)


def test_a_relay_lives_once_and_can_be_stopped_before_it_starts(engine: Engine, recorder: Recorder) -> None:
    relay = OutboxRelay(engine, {"t": recorder})
    relay.stop()

    with pytest.raises(LifecycleError):
        relay.run()


def test_a_stop_ends_the_pause_of_an_idle_relay(
    engine: Engine, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, slept = [0.0], list[float]()
    relay = OutboxRelay(engine, {"t": recorder}, poll_s=0.25)

    def sleep(duration_s: float) -> None:
        slept.append(round(duration_s, 3))
        now[0] += duration_s
        if len(slept) == 4:
            relay.stop()

    monkeypatch.setattr("conquiet.core.lifecycle.time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    relay.run()

    assert slept == [0.1, 0.1, 0.05, 0.1]


def test_a_row_that_is_tried_again_has_all_its_attempts(engine: Engine) -> None:
    add(engine, "poison")
    relay = OutboxRelay(engine, {"t": Refusing("no")}, max_attempts=2, backoff=NO_WAIT)
    relay.drain()
    (parked,) = Outbox().parked(engine)
    Outbox().unpark(engine, parked.seq)

    relay.relay_once()

    assert Outbox().parked(engine) == [], "one refusal of two"
    relay.drain()
    assert [row.attempts for row in Outbox().parked(engine)] == [2]


def test_a_relay_waits_longer_each_time_for_a_database_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = create_engine("sqlite:////nonexistent/directory/db.sqlite")
    relay = OutboxRelay(
        engine, {"t": Refusing("no")}, poll_s=0.001, backoff=Backoff(base_s=5.0, cap_s=40.0, jitter=0.0)
    )
    waits: list[float] = []

    def note(_life: BlockingLifecycle, duration_s: float) -> None:
        waits.append(duration_s)
        if len(waits) == 6:
            relay.stop()

    monkeypatch.setattr(BlockingLifecycle, "sleep", note)
    deadline = time.monotonic() + 30
    relay.run()

    assert time.monotonic() < deadline
    assert waits == [5.0, 0.001, 10.0, 0.001, 20.0, 0.001]


def test_rows_with_and_without_a_key_are_published_oldest_first(engine: Engine, recorder: Recorder) -> None:
    add(engine, "first", key="k")
    add(engine, "second")
    add(engine, "third", key="k")

    OutboxRelay(engine, {"t": recorder}).relay_once()

    assert recorder.names == ["first", "second", "third"]


def test_the_relay_counts_each_row_and_reports_its_lag(engine: Engine, recorder: Recorder) -> None:
    target = "counted-target"
    recorder.refuse = {"poison"}
    add(engine, "a", "poison", "b", target=target)
    with DbSession(engine) as session:
        session.execute("UPDATE conquiet_outbox SET created_at = '2020-01-01 00:00:00.000'")
    relay = OutboxRelay(engine, {target: recorder}, max_attempts=2, backoff=NO_WAIT)

    relay.relay_once()
    lag_s = sample("conquiet_outbox_lag_seconds", target=target)
    relay.drain()
    recorder.break_with = OSError("gone")
    add(engine, "c", target=target)
    relay.relay_once()

    year_s = 365 * 86_400
    assert lag_s is not None
    assert lag_s > year_s
    assert sample("conquiet_outbox_published_total", target=target) == 2
    assert sample("conquiet_outbox_delivery_seconds_count", target=target) == 2
    assert (sample("conquiet_outbox_delivery_seconds_sum", target=target) or 0) > 2 * year_s
    assert sample("conquiet_outbox_refused_total", target=target) == 2
    assert sample("conquiet_outbox_parked_total", target=target) == 1
    assert sample("conquiet_outbox_unavailable_total", target=target) == 1
    assert (sample("conquiet_outbox_lag_seconds", target=target) or 0) < year_s, "it has caught up"


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


def test_a_second_stop_ends_a_batch_that_is_published_one_by_one(engine: Engine) -> None:
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
    with closing(OutboxRelay(engine, {"t": recorder})) as relay:
        relay.close()
