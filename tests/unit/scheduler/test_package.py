"""The scheduler needs Redis and cronsim, and nothing of the other packages."""

from tests.hidden_modules import run_hiding


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
