"""The package runtime: its files, its exports, and the libraries that it imports without."""

import subprocess
import sys
from pathlib import Path

import pytest

import conquiet
from conquiet import runtime

PACKAGE = Path(conquiet.__file__).parent / "runtime"
HIDING = (
    "import importlib.abc, sys\n"
    "class Hide(importlib.abc.MetaPathFinder):\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name.split('.')[0] in {'sqlalchemy', 'pymysql', 'pika', 'nacl', 'typer', 'uvloop'}:\n"
    "            raise ModuleNotFoundError(name=name)\n"
    "sys.meta_path.insert(0, Hide())\n"
)


@pytest.mark.spec("CM-005.1")
def test_one_file_each_for_engine_reading_limiting_and_exports() -> None:
    for name in ("consumer.py", "stream_reader.py", "__init__.py", "../core/worker_pool.py"):
        assert (PACKAGE / name).is_file()
    assert runtime.Consumer.__module__ == "conquiet.runtime.consumer"
    assert runtime.StreamReader.__module__ == "conquiet.runtime.stream_reader"
    assert runtime.WorkerPool.__module__ == "conquiet.core.worker_pool"


@pytest.mark.spec("CM-006.5", "CM-003.4")
def test_the_engine_imports_without_database_broker_or_policy() -> None:
    code = HIDING + (
        "import conquiet.runtime\n"
        "used = {name.split('.')[1] for name in sys.modules if name.startswith('conquiet.')}\n"
        "print(sorted(used & {'db', 'rabbit', 'processor', 'scheduler', 'transactional', 'management', 'dashboard'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ran.stdout.strip() == "[]", ran.stderr


def test_every_export_is_there() -> None:
    assert all(hasattr(runtime, name) for name in runtime.__all__)
    assert conquiet.Consumer is runtime.Consumer
