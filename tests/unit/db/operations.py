"""Operations on the table ``orders``, and what came of them."""

from typing import Any

from prometheus_client import REGISTRY
from sqlalchemy import Engine, text

from conquiet.db import DbOperation, DbOperationType


def insert(id_value: Any, /, **columns: Any) -> DbOperation:
    return DbOperation("orders", DbOperationType.INSERT, id_value, {"id": id_value, **columns})


def update(id_value: Any, /, **columns: Any) -> DbOperation:
    return DbOperation("orders", DbOperationType.UPDATE, id_value, columns)


def rows(engine: Engine) -> dict[int, Any]:
    with engine.connect() as conn:
        return {row["id"]: dict(row) for row in conn.execute(text("SELECT * FROM orders")).mappings()}


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0
