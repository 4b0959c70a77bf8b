"""Databases and locks that are refused before any I/O."""

from pathlib import Path

import pytest
from sqlalchemy import create_engine

from conquiet.config import DbConfig
from conquiet.db import DbWriter, LockStrategy
from conquiet.errors import ConfigurationError


@pytest.mark.parametrize("strategy", [strategy for strategy in LockStrategy if strategy is not LockStrategy.NONE])
def test_a_mysql_lock_on_sqlite_is_refused_before_any_io(strategy: LockStrategy, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/no/such/folder/x.db")

    with pytest.raises(ConfigurationError, match=f"LockStrategy.{strategy.name} is a lock of MySQL"):
        DbWriter(engine, DbConfig("orders"), strategy)


@pytest.mark.spec("CQ-001.2")
def test_other_databases_are_refused() -> None:
    class Oracle:
        name = "oracle"

    engine = create_engine("sqlite://")
    engine.dialect = Oracle()  # type: ignore[assignment]

    with pytest.raises(ConfigurationError, match="not on oracle"):
        DbWriter(engine, DbConfig("orders"))
