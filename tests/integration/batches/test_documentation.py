"""The code of docs/batches.md, run from top to bottom."""

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, select

from conquiet.app import TestApp

PAGE = Path(__file__).parents[3] / "docs" / "batches.md"


async def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    names: dict[str, Any] = {"__name__": "batches_page"}
    exec(compile(code, "docs/batches.md", "exec"), names)
    engine = create_engine("sqlite:///shop.db")
    names["ledger"].metadata.create_all(engine)

    async with TestApp(names["app"]) as app:
        for number in range(5):
            await app.emit("order.paid", names["OrderPaid"](f"o{number}", number))
        await app.emit("refund.asked", names["OrderPaid"]("o4", 4))
        ran = await app.drain()

    with engine.connect() as connection:
        booked = connection.execute(select(names["ledger"].c.cents)).scalars().all()
    engine.dispose()
    assert sorted(booked) == [-4, 0, 1, 2, 3, 4]
    assert ran == 11
