"""``conquiet db init`` and ``conquiet worker`` on an App."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, inspect

if TYPE_CHECKING:
    import subprocess

Run = Callable[..., "subprocess.CompletedProcess[str]"]

APP = """
from conquiet import App, DbSession

app = App("shop", redis="redis://127.0.0.1:1/0", database="sqlite:///shop.db")
number = 3

@app.handler("order.paid")
def book(order: dict, session: DbSession) -> None: ...
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def test_the_tables_of_an_app_are_created_in_its_database(shop: Path, run: Run) -> None:
    result = run("db", "init", "shop:app")

    assert (result.returncode, result.stdout) == (0, "the tables of shop are there\n"), result.stderr
    engine = create_engine(f"sqlite:///{shop / 'shop.db'}")
    assert set(inspect(engine).get_table_names()) == {"conquiet_inbox", "conquiet_outbox"}
    engine.dispose()


def test_something_else_than_an_app_has_no_tables(shop: Path, run: Run) -> None:
    result = run("db", "init", "shop:number")

    assert result.returncode == 2
    assert "shop:number is a int, not an App" in result.stderr


def test_a_worker_without_its_tables_names_the_command_that_creates_them(shop: Path, run: Run) -> None:
    result = run("worker", "shop:app", "--wait-s", "0")

    assert result.returncode == 2, result.stderr
    assert "conquiet_inbox" in result.stderr
    assert "conquiet db init module:app" in result.stderr


def test_a_part_that_does_not_exist_is_refused(shop: Path, run: Run) -> None:
    result = run("worker", "shop:app", "--only", "web")

    assert result.returncode == 2
    assert "web" in result.stderr
