"""occ_update, insert_idempotent and retry_on_conflict on SQLite."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from conquiet.core.backoff import Backoff
from conquiet.db import DbSession, insert_idempotent, occ_update, retry_on_conflict
from conquiet.errors import ConfigurationError, ConflictError, DbWriteError, LifecycleError

CANARY = "canary-4711"
Call = Callable[[], object]


def amounts(engine: Engine) -> dict[int, int]:
    with DbSession(engine) as session:
        return {row["id"]: row["amount"] for row in session.fetch_all("SELECT * FROM orders")}


def test_an_update_with_the_version_read_wins_and_raises_it(sqlite: Engine) -> None:
    with DbSession(sqlite) as session:
        session.execute("INSERT INTO orders (id, amount, version) VALUES (1, 10, 3)")
        assert occ_update(session, "orders", 1, {"amount": 11}, expected_version=3) == 4
    with DbSession(sqlite) as session:
        assert session.fetch_one("SELECT amount, version FROM orders") == {"amount": 11, "version": 4}


@pytest.mark.spec("QC-001.20")
def test_a_conflict_ends_the_session_so_that_no_retry_loop_fits_inside(sqlite: Engine) -> None:
    with DbSession(sqlite) as session:
        session.execute("INSERT INTO orders (id, amount) VALUES (1, 10)")

    with pytest.raises(ConflictError, match="new session"), DbSession(sqlite) as session:  # noqa: PT012 - leaving the block raises
        session.execute("UPDATE orders SET amount = 0")
        with pytest.raises(ConflictError):
            occ_update(session, "orders", 1, {"amount": 11}, expected_version=7)
        with pytest.raises(LifecycleError, match="new session"):
            occ_update(session, "orders", 1, {"amount": 11}, expected_version=1)

    assert amounts(sqlite) == {1: 10}


def test_names_given_to_the_helpers_are_checked(sqlite: Engine) -> None:
    with DbSession(sqlite) as session:
        calls: tuple[Call, ...] = (
            lambda: occ_update(session, "a b", 1, {}, expected_version=1),
            lambda: occ_update(session, "orders", 1, {"x`": 1}, expected_version=1),
            lambda: occ_update(session, "orders", 1, {"version": 1}, expected_version=1),
            lambda: occ_update(session, "orders", 1, {}, expected_version=1, version_column="v;"),
            lambda: insert_idempotent(session, "orders", 1, {"a b": 1}),
            lambda: insert_idempotent(session, "orders--", 1, {}),
        )
        for call in calls:
            with pytest.raises(ConfigurationError):
                call()


@pytest.mark.spec("CQ-005.2", "CQ-005.10", "CQ-005.12")
def test_an_idempotent_insert_happens_once(sqlite: Engine) -> None:
    with DbSession(sqlite) as session:
        assert insert_idempotent(session, "orders", 1, {"amount": 10, "email": CANARY}) is True
        assert insert_idempotent(session, "orders", 1, {"amount": 99}) is False
        with pytest.raises(DbWriteError) as caught:
            insert_idempotent(session, "orders", 2, {"email": CANARY})
        assert CANARY not in str(caught.value)
        for id_value in (1, 3):  # not a duplicate, even if the row exists
            with pytest.raises(DbWriteError):
                insert_idempotent(session, "orders", id_value, {"status": None})
    assert amounts(sqlite) == {1: 10}


def test_each_retry_gets_a_new_session_and_the_last_conflict_is_raised(sqlite: Engine) -> None:
    sessions: list[DbSession] = []
    waits: list[float] = []

    def conflicting(session: DbSession) -> str:
        sessions.append(session)
        if len(sessions) < 3:
            raise ConflictError("another transaction was first")
        return "done"

    backoff = Backoff(base_s=1, factor=2, jitter=0)
    assert retry_on_conflict(sqlite, conflicting, attempts=3, backoff=backoff, sleep=waits.append) == "done"
    assert len(set(map(id, sessions))) == 3
    assert waits == [1, 2]

    sessions.clear()
    with pytest.raises(ConflictError):
        retry_on_conflict(sqlite, conflicting, attempts=2, backoff=backoff, sleep=waits.append)
    assert len(sessions) == 2


def test_work_that_is_not_awaited_is_an_error(sqlite: Engine) -> None:
    async def unawaited() -> None:
        raise AssertionError("not awaited")

    def work(_: DbSession) -> object:
        return unawaited()

    with pytest.raises(ConfigurationError, match="work returned a coroutine, so its work was not done"):
        retry_on_conflict(sqlite, work)


def test_only_conflicts_are_retried(sqlite: Engine) -> None:
    calls: list[int] = []

    def failing(_: DbSession) -> None:
        calls.append(1)
        raise DbWriteError("something else")

    with pytest.raises(DbWriteError):
        retry_on_conflict(sqlite, failing, sleep=lambda _: None)
    with pytest.raises(ConfigurationError):
        retry_on_conflict(sqlite, failing, attempts=0)
    assert len(calls) == 1


def test_each_attempt_waits_longer_than_the_one_before_it(sqlite: Engine) -> None:
    slept: list[float] = []

    def conflict(_: DbSession) -> None:
        raise ConflictError("again")

    with pytest.raises(ConflictError):
        retry_on_conflict(
            sqlite, conflict, attempts=4, backoff=Backoff(base_s=1, factor=2, cap_s=60, jitter=0), sleep=slept.append
        )

    assert slept == [1, 2, 4]
