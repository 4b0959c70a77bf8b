"""The number of connections that a pool lends concurrently, and the warning if it is too small."""

from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import AssertionPool, NullPool, StaticPool

from conquiet.db import pool_capacity
from conquiet.db.engine_pool import pool_timeout_hint


@pytest.mark.parametrize(
    ("options", "capacity"),
    [
        ({}, 15),
        ({"pool_size": 20}, 30),
        ({"pool_size": 3, "max_overflow": 0}, 3),
        ({"pool_size": 3, "max_overflow": -1}, None),
        ({"pool_size": 0}, None),
        ({"poolclass": NullPool}, None),
        ({"poolclass": StaticPool}, None),
        ({"poolclass": AssertionPool}, 1),
    ],
)
def test_the_capacity_is_size_and_overflow_or_none(options: dict[str, Any], capacity: int | None) -> None:
    assert pool_capacity(create_engine("mysql+pymysql://nowhere/x", **options)) == capacity


def test_only_a_pool_that_ran_out_is_explained() -> None:
    pool = create_engine("mysql+pymysql://nowhere/x").pool
    hint = pool_timeout_hint(PoolTimeoutError("QueuePool limit"), pool)

    assert hint is not None
    assert "pool_size 5, max_overflow 10" in hint
    assert "at most 15" in hint
    assert pool_timeout_hint(RuntimeError(), pool) is None
    assert pool_timeout_hint(PoolTimeoutError("x"), None) is None
