"""The package as a whole: its files, its names, what it does not need."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import conquiet
import conquiet.db

PACKAGE = Path(conquiet.__file__).parent / "db"
HIDE = (
    "import importlib.abc, sys\n"
    "class Hide(importlib.abc.MetaPathFinder):\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name.split('.')[0] in {hidden!r}:\n"
    "            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)\n"
    "sys.meta_path.insert(0, Hide())\n"
)


def run_hiding(*hidden: str, code: str) -> subprocess.CompletedProcess[str]:
    script = HIDE.format(hidden=hidden) + code
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.spec("CQ-002.2", "CQ-002.3", "CQ-009.1")
def test_the_files_of_the_seeds_layout_are_there() -> None:
    for name in ("__init__.py", "models.py", "writer.py", "metrics.py"):
        assert (PACKAGE / name).is_file(), name
    for name in ("__init__", "base", "strategy", "advisory_mysql", "row_mysql", "table_mysql", "composite"):
        assert (PACKAGE / "locking" / f"{name}.py").is_file(), name


@pytest.mark.spec("CQ-000.2", "QC-001.17")
def test_the_package_works_without_any_broker_installed() -> None:
    """Through the root names too; and with a real write."""
    result = run_hiding(
        "redis",
        "hiredis",
        "pika",
        "nacl",
        "msgspec",
        "pymysql",
        "typer",
        code=(
            "from sqlalchemy import create_engine\n"
            "from conquiet import DbConfig, DbOperation, DbOperationType, DbSession, DbWriter, LockStrategy\n"
            "engine = create_engine('sqlite://')\n"
            "with DbSession(engine) as session: session.execute('CREATE TABLE t (id INTEGER PRIMARY KEY)')\n"
            "print(DbWriter(engine, DbConfig('t')).execute(DbOperation('t', DbOperationType.INSERT, 1, {'id': 1})))\n"
            "import sys; print(sorted({'redis', 'pika'} & set(sys.modules)))"
        ),
    )

    assert result.stdout.splitlines() == ["WriteOutcome(rows=1, duplicate=False)", "[]"], result.stderr


def test_without_sqlalchemy_it_says_what_to_install() -> None:
    code = "import conquiet.core.extras as extras; extras.find_spec = lambda name: None; import conquiet.db"

    result = run_hiding(code=code)

    assert "pip install 'conquiet[mysql]'" in result.stderr


@pytest.mark.spec("CQ-001.4", "CQ-005.51")
def test_statements_are_texts_of_raw_sql_and_no_insert_ignores_or_upserts() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))

    assert not re.search(r"sqlalchemy\.orm|from sqlalchemy import .*\b(insert|update|select|Table)\b", sources)
    # Compiled from a text once, then sent as it is: in one place.
    senders = [path.name for path in PACKAGE.rglob("*.py") if "exec_driver_sql" in path.read_text()]
    assert senders == ["statement_execution.py"]
    assert not re.search(r'"[^"]*(INSERT IGNORE INTO|ON DUPLICATE KEY|REPLACE INTO)', sources)


@pytest.mark.spec("CQ-001.3")
def test_the_package_takes_a_sqlalchemy_engine() -> None:
    from inspect import signature

    from sqlalchemy import Engine

    assert signature(conquiet.db.DbWriter).parameters["engine"].annotation is Engine
    assert signature(conquiet.db.DbSession).parameters["engine"].annotation is Engine


def test_every_exported_name_resolves() -> None:
    for name in conquiet.db.__all__:
        assert getattr(conquiet.db, name) is not None
