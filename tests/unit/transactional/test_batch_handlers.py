"""Batch handlers: the arguments that are refused, and the results that a transaction cannot have."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.engine import Engine
from tests.unit.transactional.outbox_rows import rows

from conquiet.db.session import DbSession
from conquiet.errors import ConfigurationError
from conquiet.rabbit.batch_results import CURRENT_BATCH
from conquiet.transactional import Outbox, for_rabbit, for_rabbit_batch


@pytest.mark.parametrize("make", [for_rabbit, for_rabbit_batch])
@pytest.mark.parametrize("key", ["id", asyncio.sleep])
def test_a_key_of_rabbit_messages_that_is_no_plain_function_is_refused(
    engine: Engine, make: Callable[..., Any], key: Any
) -> None:
    """Its first call, with a message, would stop the consumer."""
    with pytest.raises(ConfigurationError, match="key must be"):
        make(lambda _message, _session: None, engine=engine, key=key)


def test_exceptions_that_a_rabbit_batch_returns_with_a_session_are_refused(engine: Engine) -> None:
    """The transaction holds the effects of their messages, which were acknowledged: the failures were lost."""

    def handle(_: list[Any], session: DbSession) -> list[Exception | None]:
        Outbox().add(session, "effect", {})
        return [None, ValueError("the second")]

    syncer = for_rabbit_batch(handle, engine=engine)
    deliveries: Any = [SimpleNamespace(queue="q", message_id=name, body=b"{}") for name in ("m-1", "m-2")]
    token = CURRENT_BATCH.set(deliveries)
    outcomes: Any = syncer([{}, {}])
    CURRENT_BATCH.reset(token)

    assert [type(outcome) for outcome in outcomes] == [ConfigurationError] * 2
    assert rows(engine, "conquiet_outbox") == 0
