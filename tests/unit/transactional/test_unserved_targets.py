"""A typo in a target's name is found: where the row is written, where the relay is made, or by the rows that wait."""

import logging
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy.engine import Engine
from tests.unit.transactional.conftest import Recorder

from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError
from conquiet.transactional import Outbox, OutboxRelay, create_tables

OLD = "2020-01-01 00:00:00.000"


def add(engine: Engine, target: str, *, outbox: Outbox | None = None, **options: Any) -> None:
    with DbSession(engine) as session:
        (outbox or Outbox()).add(session, target, {"name": "x"}, **options)


def make_old(engine: Engine, table: str = "conquiet_outbox") -> None:
    with DbSession(engine) as session:
        session.execute(f"UPDATE {table} SET created_at = '{OLD}', due_at = '{OLD}'")


def unserved_s(table: str = "conquiet_outbox") -> float | None:
    return REGISTRY.get_sample_value("conquiet_outbox_unserved_seconds", {"table": table})


def test_a_target_that_was_not_declared_is_refused_and_nothing_written(engine: Engine) -> None:
    outbox = Outbox(targets=["ledger", "mail"])

    with pytest.raises(ConfigurationError, match=r"no target 'leger' .* declared are: ledger, mail"):
        add(engine, "leger", outbox=outbox)
    add(engine, "ledger", outbox=outbox)

    assert list(Outbox().backlog(engine)) == ["ledger"]


def test_a_relay_of_a_target_that_was_not_declared_is_refused(engine: Engine, recorder: Recorder) -> None:
    outbox = Outbox(targets=["ledger"])

    with pytest.raises(ConfigurationError, match="leger"):
        OutboxRelay(engine, {"leger": recorder}, outbox=outbox)
    OutboxRelay(engine, {"ledger": recorder}, outbox=outbox)


@pytest.mark.parametrize("targets", ["ledger", [""], [5]])
def test_declared_targets_are_names(targets: Any) -> None:
    with pytest.raises(ConfigurationError):
        Outbox(targets=targets)


@pytest.mark.parametrize("key", [None, "k"])
def test_rows_that_no_relay_takes_are_reported_once(
    engine: Engine, recorder: Recorder, caplog: pytest.LogCaptureFixture, key: str | None
) -> None:
    add(engine, "leger", key=key)
    add(engine, "ledger")
    make_old(engine)
    relay = OutboxRelay(engine, {"ledger": recorder})

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            relay.relay_once()
            relay._unserved._next_check = 0.0

    (record,) = caplog.records
    assert "does not serve" in record.message
    assert record.__dict__["target"] == "leger"
    assert relay.unserved_targets == ["leger"]
    assert (unserved_s() or 0) > 1e8
    assert recorder.names == ["x"]


def test_a_report_ends_when_the_rows_are_gone_and_begins_again(
    engine: Engine, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    relay, other = OutboxRelay(engine, {"ledger": recorder}), OutboxRelay(engine, {"mail": recorder})
    for _ in range(2):
        add(engine, "mail")
        make_old(engine)
        relay._unserved._next_check = 0.0
        relay.relay_once()
        assert relay.unserved_targets == ["mail"]

        other.drain()
        relay._unserved._next_check = 0.0
        relay.relay_once()
        assert relay.unserved_targets == []
        assert unserved_s() == 0

    assert len([record for record in caplog.records if "does not serve" in record.message]) == 2


def test_rows_of_another_relay_are_not_reported_while_it_may_take_them(engine: Engine, recorder: Recorder) -> None:
    """Young rows, rows that were delayed and are due now, and parked rows do not count."""
    add(engine, "young")
    add(engine, "parked")
    add(engine, "later", delay_s=3600.0)
    with DbSession(engine) as session:
        session.execute(f"UPDATE conquiet_outbox SET created_at = '{OLD}'")
        session.execute(f"UPDATE conquiet_outbox SET parked = 1, due_at = '{OLD}' WHERE target = :t", {"t": b"parked"})

    relay = OutboxRelay(engine, {"ledger": recorder})
    relay.relay_once()

    assert relay.unserved_targets == []


def test_the_relay_checks_twice_a_minute_and_not_each_round(engine: Engine, recorder: Recorder) -> None:
    relay = OutboxRelay(engine, {"ledger": recorder})
    checks: list[DbSession] = []
    relay._unserved.check = checks.append  # type: ignore[assignment,method-assign]
    relay._unserved._next_check = 0.0
    relay.relay_once()
    assert len(checks) == 1

    relay = OutboxRelay(engine, {"ledger": recorder})
    relay.relay_once()
    relay._unserved.check = checks.append  # type: ignore[assignment,method-assign]
    for _ in range(5):
        relay.relay_once()
    assert len(checks) == 1


def test_an_outbox_of_another_name_is_checked(engine: Engine, recorder: Recorder) -> None:
    create_tables(engine, outbox="other_outbox")
    outbox = Outbox("other_outbox")
    add(engine, "leger", outbox=outbox)
    make_old(engine, "other_outbox")

    relay = OutboxRelay(engine, {"ledger": recorder}, outbox=outbox)
    relay.relay_once()

    assert relay.unserved_targets == ["leger"]
    assert (unserved_s("other_outbox") or 0) > 1e8


def test_overdue_rows_are_listed_without_a_relay(engine: Engine) -> None:
    add(engine, "leger")
    young = Outbox().overdue(engine)
    make_old(engine)

    assert young == {}
    assert Outbox().overdue(engine)["leger"] > 1e8
