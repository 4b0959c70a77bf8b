"""Thresholds of the checks of what is kept."""

import pytest
from sqlalchemy import create_engine, text

from conquiet.management.doctor import Severity
from conquiet.management.doctor.redis_facts import RedisFacts
from conquiet.management.doctor.retention import (
    CHECKS,
    RedeliverySource,
    RetentionFacts,
    check_unread_groups,
    examine_inbox,
)
from conquiet.management.models import ConsumerReport, ConsumerState, GroupReport, StreamReport
from conquiet.transactional import create_tables

DAY_S = 86_400.0
ALICE = ConsumerReport("alice", 0, 5, ConsumerState.LIVE)


def group(name: str, *, lag: int, last: str = "5-0", consumers: tuple[ConsumerReport, ...] = ()) -> GroupReport:
    return GroupReport(name, lag, 0, last, 1_000.0 if lag else None, consumers, name.encode())


def unread(*groups: GroupReport) -> list[str]:
    stream = StreamReport("orders", 9, "1-0", "9-0", None, 0, 0, (), groups, b"orders")
    return [one.what for one in check_unread_groups(RedisFacts({}, {}, (), (stream,), (), ""))]


def test_a_group_that_no_consumer_ever_read_is_found() -> None:
    reading = group("billing", lag=0, last="9-0", consumers=(ALICE,))

    (what,) = unread(reading, group("made-to-produce", lag=9, last="0-0"))

    assert "made-to-produce" in what
    assert "9 entries" in what


@pytest.mark.parametrize(
    "other",
    [group("b", lag=4, consumers=(ALICE,)), group("b", lag=0, last="9-0"), group("b", lag=4, last="9-0")],
    ids=["has a consumer", "has nothing to do", "is not behind"],
)
def test_a_group_that_holds_nothing_back_is_no_fault(other: GroupReport) -> None:
    assert unread(group("a", lag=0, last="9-0", consumers=(ALICE,)), other) == []


def found(*sources: RedeliverySource, oldest_row_s: float | None = None) -> dict[str, Severity]:
    facts = RetentionFacts(30 * DAY_S, oldest_row_s, sources)
    return {one.check: one.severity for check in CHECKS for one in check(facts)}


@pytest.mark.parametrize(("days", "is_fault"), [(29.9, False), (30.0, True)])
def test_a_copy_older_than_the_inbox_rows_is_an_error(days: float, *, is_fault: bool) -> None:
    assert found(RedeliverySource("orders", "a dead letter", days * DAY_S)) == (
        {"inbox.retention": Severity.ERROR} if is_fault else {}
    )


@pytest.mark.parametrize(("days", "is_fault"), [(33.0, False), (33.1, True)])
def test_rows_much_older_than_the_retention_are_a_warning(days: float, *, is_fault: bool) -> None:
    assert found(oldest_row_s=days * DAY_S) == ({"inbox.purge": Severity.WARNING} if is_fault else {})


def test_a_database_without_an_inbox_is_no_fault() -> None:
    engine = create_engine("sqlite://")

    assert examine_inbox(engine, (RedeliverySource("orders", "a dead letter", 99 * DAY_S),)) == []
    engine.dispose()


def test_the_age_of_rows_is_read_on_sqlite() -> None:
    engine = create_engine("sqlite://")
    create_tables(engine)
    assert examine_inbox(engine) == []
    with engine.begin() as connection:
        then = "strftime('%Y-%m-%d %H:%M:%f', 'now', '-40 days')"
        connection.execute(text(f"INSERT INTO conquiet_inbox VALUES ('s', 'g', '1', {then}, NULL)"))

    (finding,) = examine_inbox(engine)
    engine.dispose()

    assert (finding.check, "40 days" in finding.what) == ("inbox.purge", True)
