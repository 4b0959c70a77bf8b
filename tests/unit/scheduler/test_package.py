"""The scheduler needs Redis and cronsim, and nothing of the other packages."""

import subprocess
import sys

HIDE = (
    "import importlib.abc, sys\n"
    "class Hide(importlib.abc.MetaPathFinder):\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name.split('.')[0] in {hidden!r}:\n"
    "            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)\n"
    "sys.meta_path.insert(0, Hide())\n"
)


def run_hiding(*modules: str, code: str) -> subprocess.CompletedProcess[str]:
    program = HIDE.format(hidden=modules) + code
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_it_works_without_the_database_and_the_other_broker() -> None:
    done = run_hiding(
        "sqlalchemy",
        "pymysql",
        "pika",
        "typer",
        "starlette",
        code="from conquiet import Scheduler, ScheduleEntry, Cron; print(Cron('@daily').next_after(0))",
    )
    assert done.stdout.strip() == "86400000", done.stderr


def test_without_its_extra_it_says_what_to_install() -> None:
    done = run_hiding(code="sys.modules['cronsim'] = None\nimport conquiet.scheduler")

    assert "pip install 'conquiet[scheduler]'" in done.stderr
