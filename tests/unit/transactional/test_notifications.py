"""Databases that notify a relay, and the name of the channel."""

import pytest
from sqlalchemy import create_engine

from conquiet.transactional.notifications import listener_for
from conquiet.transactional.sql_dialect import channel_of


@pytest.mark.parametrize("url", ["sqlite://", "mysql+pymysql://u@127.0.0.1/x", "postgresql+asyncpg://u@127.0.0.1/x"])
def test_without_notifications_there_is_no_listener(url: str) -> None:
    if "asyncpg" in url:
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(url).sync_engine
    else:
        engine = create_engine(url)

    assert listener_for(engine, "conquiet_outbox") is None


def test_a_listener_without_a_server_waits_and_reports_nothing() -> None:
    engine = create_engine("postgresql+psycopg://u@127.0.0.1:1/x")
    listener = listener_for(engine, "conquiet_outbox")
    assert listener is not None

    assert listener.wait(0.01) is False
    assert not listener.is_listening
    listener.close()
    listener.close()


def test_a_long_name_gets_a_channel_that_postgresql_does_not_cut() -> None:
    """It cuts after 63 bytes: two tables that differ behind that would wake each other's relays."""
    one, two = (channel_of(f"{'x' * 70}_{end}") for end in "ab")

    assert channel_of("app.conquiet_outbox") == "app.conquiet_outbox"
    assert one != two
    assert max(len(one), len(two)) <= 63
