"""The lease check before a commit."""

from typing import Any

import pytest
from sqlalchemy.engine import Engine
from tests.unit.transactional.outbox_rows import MESSAGE, rows

from conquiet.db.session import DbSession
from conquiet.errors import (
    ConfigurationError,
    LeaseLostError,
)
from conquiet.transactional import (
    Inbox,
    LeaseCheck,
    Outbox,
)


async def pays(*_: Any) -> None:
    raise AssertionError("not awaited")


@pytest.mark.parametrize("inbox", [None, Inbox()])
def test_a_message_that_was_lost_before_the_commit_has_no_effect(engine: Engine, inbox: Inbox | None) -> None:
    check = LeaseCheck(lambda _: False, inbox)
    with (  # noqa: PT012 - the whole block is one transaction
        pytest.raises(LeaseLostError, match="rolled back"),
        DbSession(engine) as session,
        check.once(session, MESSAGE) as first_time,
    ):
        assert first_time
        Outbox().add(session, "t", {"name": "x"})

    assert rows(engine) == rows(engine, "conquiet_outbox") == 0


def test_a_message_that_is_is_owner_is_committed_and_asked_about_once(engine: Engine) -> None:
    asked: list[Any] = []

    def is_owner(msg: Any) -> bool:
        asked.append(msg)
        return True

    check = LeaseCheck(is_owner, Inbox())

    for _ in range(2):
        with DbSession(engine) as session, check.once(session, MESSAGE):
            pass

    assert asked == [MESSAGE], "a duplicate has nothing to keep out"
    assert rows(engine) == 1


def test_a_lease_check_answered_by_a_coroutine_lets_nothing_pass(engine: Engine) -> None:
    check = LeaseCheck(lambda _: pays())  # type: ignore[arg-type, return-value]

    with (
        pytest.raises(ConfigurationError),
        DbSession(engine) as session,
        check.once(session, MESSAGE),
    ):
        Outbox().add(session, "t", {})

    assert rows(engine, "conquiet_outbox") == 0


@pytest.mark.parametrize("wrong", ["conquiet_inbox", Inbox])
def test_an_object_that_is_not_an_inbox_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="inbox must be"):
        LeaseCheck(lambda _: True, wrong)
