"""Databases and locks that are refused before any I/O."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from conquiet.config import DbConfig
from conquiet.db import DbSession, DbWriter, LockStrategy, retry_on_conflict
from conquiet.errors import ConfigurationError
from conquiet.transactional import Inbox, OutboxRelay, Purger, create_tables


@pytest.mark.parametrize("strategy", [strategy for strategy in LockStrategy if strategy is not LockStrategy.NONE])
def test_a_mysql_lock_on_sqlite_is_refused_before_any_io(strategy: LockStrategy, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/no/such/folder/x.db")

    with pytest.raises(ConfigurationError, match=f"LockStrategy.{strategy.name} is a lock of MySQL"):
        DbWriter(engine, DbConfig("orders"), strategy)


class Nowhere:
    """A target that is never called."""

    def publish(self, messages: object) -> Any:
        raise AssertionError(messages)


DOORS: dict[str, Callable[[Any], object]] = {
    "DbWriter": lambda engine: DbWriter(engine, DbConfig("orders")),
    "DbSession": DbSession,
    "retry_on_conflict": lambda engine: retry_on_conflict(engine, lambda session: None),
    "create_tables": create_tables,
    "OutboxRelay": lambda engine: OutboxRelay(engine, {"orders": Nowhere()}),
    "Purger": lambda engine: Purger(engine, inbox=Inbox()),
}


@pytest.mark.spec("CQ-001.2", "CQ-001.3")
@pytest.mark.parametrize("door", DOORS)
def test_other_databases_are_refused(door: str) -> None:
    class Oracle:
        name = "oracle"

    engine = create_engine("sqlite://")
    engine.dialect = Oracle()  # type: ignore[assignment]

    with pytest.raises(ConfigurationError, match="not on oracle"):
        DOORS[door](engine)
    with pytest.raises(ConfigurationError, match="engine"):
        DOORS[door]("mysql+pymysql://127.0.0.1/shop")
