"""An effect counts when it is committed."""

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from conquiet.db import DbSession
from conquiet.queue.models import QueueMessage
from conquiet.transactional import Inbox


def counted(source: str) -> dict[str, float]:
    return {
        outcome: REGISTRY.get_sample_value("conquiet_inbox_messages_total", {"source": source, "outcome": outcome}) or 0
        for outcome in ("first", "duplicate")
    }


@pytest.mark.parametrize("kind", ["DbSession", "Session", "Connection"])
def test_a_run_that_is_rolled_back_is_no_effect(engine: Engine, kind: str) -> None:
    source = f"effects-{kind}"
    message = QueueMessage(source, "g", "1-0", {})

    def run(*, fails: bool) -> None:
        opened = (
            DbSession(engine) if kind == "DbSession" else Session(engine) if kind == "Session" else engine.connect()
        )
        with opened as session:
            Inbox().once(session, message).__enter__()
            if fails:
                raise RuntimeError
            if kind != "DbSession":
                session.commit()  # type: ignore[union-attr]

    for _ in range(3):
        with pytest.raises(RuntimeError):
            run(fails=True)
    assert counted(source) == {"first": 0, "duplicate": 0}
    run(fails=False)
    assert counted(source) == {"first": 1, "duplicate": 0}
    run(fails=False)
    assert counted(source) == {"first": 1, "duplicate": 1}


def test_a_rollback_forgets_what_was_to_be_counted(engine: Engine) -> None:
    source = "effects-rollback"
    with engine.connect() as connection:
        for number in range(3):
            Inbox().once(connection, QueueMessage(source, "g", f"{number}-0", {})).__enter__()
            connection.rollback()
        Inbox().once(connection, QueueMessage(source, "g", "9-0", {})).__enter__()
        connection.commit()
        connection.commit()

    assert counted(source)["first"] == 1
