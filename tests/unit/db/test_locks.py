"""AdvisoryLock and RowLock without a server."""

import pytest
from sqlalchemy import Engine

from conquiet.db import AdvisoryLock, DbSession, RowLock
from conquiet.errors import ConfigurationError


def test_locks_of_mysql_are_refused_on_sqlite(sqlite: Engine) -> None:
    with DbSession(sqlite) as session:
        with pytest.raises(ConfigurationError, match="AdvisoryLock is a lock of MySQL"):
            AdvisoryLock(session, "key")
        with pytest.raises(ConfigurationError, match="RowLock is a lock of MySQL"):
            RowLock(session, "orders", {"id": 1})
