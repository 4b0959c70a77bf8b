"""Rows of the inbox and the outbox, written and counted by the tests."""

from sqlalchemy.engine import Engine

from conquiet.core.backoff import Backoff
from conquiet.db.session import DbSession
from conquiet.queue.models import QueueMessage
from conquiet.transactional import Outbox

NO_WAIT = Backoff(base_s=0.0, cap_s=0.0)
MESSAGE = QueueMessage("orders", "billing", "1-0", {})


def rows(engine: Engine, table: str = "conquiet_inbox") -> int:
    with DbSession(engine) as session:
        return int(session.execute_scalar(f"SELECT COUNT(*) FROM {table}"))


def add(engine: Engine, *names: str, key: str | None = None, delay_s: float | None = None, target: str = "t") -> None:
    with DbSession(engine) as session:
        for name in names:
            Outbox().add(session, target, {"name": name}, key, delay_s=delay_s)
