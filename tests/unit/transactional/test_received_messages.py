"""The identity of a received message: when its id is trusted, and when its payload is compared."""

from typing import Any

import pytest
from sqlalchemy.engine import Engine
from tests.unit.transactional.deliveries import from_processor, from_rabbit, from_runtime

from conquiet.db.session import DbSession
from conquiet.errors import (
    MessageKeyError,
)
from conquiet.transactional import (
    Inbox,
    Outbox,
    for_processor,
    for_rabbit,
    for_runtime,
)


def write(_: Any, session: DbSession) -> None:
    Outbox().add(session, "effect", {})


def effects(engine: Engine) -> int:
    with DbSession(engine) as session:
        return int(session.execute_scalar("SELECT COUNT(*) FROM conquiet_outbox"))


# ------------------------------------------------------------------ which messages are the same
def test_a_repeated_entry_id_is_recognised_under_the_runtime(engine: Engine) -> None:
    handle = for_runtime(write, engine=engine)

    for raw in (b'{"n":1}', b'{"n":2}', b'{"n":1}', b'{"n":2}'):
        from_runtime(handle, raw=raw)

    assert effects(engine) == 2


def test_a_job_id_that_its_producer_made_is_trusted(engine: Engine) -> None:
    handle = for_processor(write, engine=engine)

    for attempt in range(3):
        from_processor(handle, data={"sent": attempt})

    assert effects(engine) == 1


def test_a_job_id_that_redis_made_is_compared_by_event_and_data(engine: Engine) -> None:
    """An envelope without an id gets the id of its first entry, and keeps it through all attempts."""
    handle = for_processor(write, engine=engine)

    for _ in range(2):
        from_processor(handle, id="5-0", data={"a": 1, "b": 2})
        from_processor(handle, id="5-0", data={"b": 2, "a": 1})
        from_processor(handle, id="5-0", data={"a": 2})
        from_processor(handle, id="5-0", data={"a": 2}, event="shipped")

    assert effects(engine) == 3


def test_an_amqp_message_id_is_trusted_unless_comparing_is_asked_for(engine: Engine) -> None:
    trusting = for_rabbit(write, engine=engine)
    comparing = for_rabbit(write, engine=engine, inbox=Inbox(compare_payload=True))

    for body in (b"1", b"2"):
        assert from_rabbit(trusting, id="a", body=body) is True
    assert effects(engine) == 1
    for body in (b"1", b"2", b"1", b"2"):
        assert from_rabbit(comparing, id="b", body=body) is True
    assert effects(engine) == 3


def test_a_rabbit_message_without_an_id_names_the_property(engine: Engine) -> None:
    for inbox in ("conquiet_inbox", Inbox()):
        with pytest.raises(MessageKeyError, match="message_id"):
            from_rabbit(for_rabbit(write, engine=engine, inbox=inbox), id=None)
