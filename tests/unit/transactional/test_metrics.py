"""Metrics of inbox, lease check, outbox and relay. Counting never raises, so only a test sees a wrong label."""

from typing import Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy.engine import Engine

from conquiet.core.backoff import Backoff
from conquiet.db.session import DbSession
from conquiet.errors import ConflictError, LeaseLostError
from conquiet.queue.models import QueueMessage
from conquiet.transactional import Inbox, LeaseCheck, Outbox, OutboxRelay

NO_WAIT = Backoff(base_s=0.0, cap_s=0.0)


def sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def add(engine: Engine, target: str, *names: str) -> None:
    with DbSession(engine) as session:
        for name in names:
            Outbox().add(session, target, {"name": name})


def test_inbox_and_lease_check_count_their_results(engine: Engine) -> None:
    source = "counted-stream"
    one, two = (QueueMessage(source, "g", f"{number}-0", {}) for number in range(2))

    for _ in range(3):
        with DbSession(engine) as session, Inbox().once(session, one):
            pass
    with (
        DbSession(engine) as first,
        Inbox().once(first, two),
        pytest.raises(ConflictError),
        DbSession(engine) as second,
        Inbox().once(second, two),
    ):
        pytest.fail("SQLite has one writer")
    with pytest.raises(LeaseLostError), DbSession(engine) as session, LeaseCheck(lambda _: False).once(session, one):
        pass

    counted = {
        outcome: sample("conquiet_inbox_messages_total", source=source, outcome=outcome)
        for outcome in ("first", "duplicate", "conflict")
    }
    assert counted == {"first": 2, "duplicate": 2, "conflict": 1}
    assert sample("conquiet_fence_lease_lost_total", source=source) == 1


def test_the_relay_counts_each_row_and_reports_its_lag(engine: Engine, recorder: Any) -> None:
    target = "counted-target"
    recorder.refuse = {"poison"}
    add(engine, target, "a", "poison", "b")
    with DbSession(engine) as session:
        session.execute("UPDATE conquiet_outbox SET created_at = '2020-01-01 00:00:00.000'")
    relay = OutboxRelay(engine, {target: recorder}, max_attempts=2, backoff=NO_WAIT)

    relay.relay_once()
    lag_s = sample("conquiet_outbox_lag_seconds", target=target)
    relay.drain()
    recorder.break_with = OSError("gone")
    add(engine, target, "c")
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
