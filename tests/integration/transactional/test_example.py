"""The example in examples/ runs as it is printed, on the run's shared servers."""

import importlib.util
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

EXAMPLE = Path(__file__).parents[3] / "examples" / "exactly_once_orders.py"


def test_the_books_of_the_example_agree(
    amqp_url: str, db_url: str, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("exactly_once_orders", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    example.main(amqp_url, db_url, redis_url)

    printed = capsys.readouterr().out
    assert "the books agree" in printed
    assert "interrupted" in printed
    engine = create_engine(db_url)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT source, COUNT(*) FROM conquiet_inbox GROUP BY source"))
        rows = {row[0]: row[1] for row in found}
    engine.dispose()
    assert rows == {b"orders": example.ORDERS, b"ledger": example.ORDERS}
