"""The README's programs are run as they stand there: in a process of their own, on real servers, until SIGTERM.

Its first command, ``make demo``, is run in ``test_demo.py``.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.metadata import metadata
from pathlib import Path

import pika
import pytest
import redis
from sqlalchemy import create_engine, text

from conquiet.testing import wait_until

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS: list[str] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


COMMANDS: list[str] = re.findall(r"^\$ (.*?)(?:\s+#.*)?$", README, re.MULTILINE)


def program(word: str) -> str:
    """The one program of the README that contains the word."""
    (found,) = [source for source in PROGRAMS if word in source]
    return found


def accounts(url: str) -> dict[int, int]:
    engine = create_engine(url)
    with engine.connect() as connection:
        rows = {int(row.id): int(row.cents) for row in connection.execute(text("SELECT id, cents FROM account"))}
    engine.dispose()
    return rows


@pytest.fixture
def shop(db_url: str) -> str:
    """A database with the table the README speaks of."""
    engine = create_engine(db_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE account (id INT PRIMARY KEY, cents BIGINT NOT NULL)"))
        connection.execute(text("INSERT INTO account VALUES (7, 5000)"))
    engine.dispose()
    return db_url


def run_until(said: str, source: str, *, settled: Callable[[], bool] = lambda: True, **urls: str) -> None:
    """Run the program until it has said something and the world is settled; it must then end well on SIGTERM."""
    process = subprocess.Popen(
        [sys.executable, "-c", source],
        env={**os.environ, **urls},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=output.extend, args=(process.stdout,))
    reader.start()
    try:
        wait_until(
            lambda: process.poll() is not None or (any(line.startswith(said) for line in output) and settled()),
            timeout_s=60,
            message=f"the README's program said {output}",
        )
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
        reader.join()
        process.stdout.close()
    assert process.returncode == 0, "".join(output)
    assert any(line.startswith(said) for line in output), "".join(output)


def test_the_payment_is_made_and_acknowledged(shop: str, redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)

    run_until(
        "paid",
        program("inbox=Inbox()"),
        settled=lambda: client.xpending("payments", "billing")["pending"] == 0,
        DB_URL=shop,
        REDIS_URL=redis_url,
    )

    assert accounts(shop)[7] == 4000
    client.close()


def test_rows_are_changed_under_a_lock(shop: str) -> None:
    command = [sys.executable, "-c", program("writer.modify")]

    done = subprocess.run(command, env={**os.environ, "DB_URL": shop}, capture_output=True, text=True, check=True)

    assert done.stdout == "changed 1\n"

    assert accounts(shop) == {7: 5000, 8: 250}


def test_the_engine_handles_the_message(redis_url: str) -> None:
    run_until("handled 1", program("concurrency=100"), REDIS_URL=redis_url)


def test_the_processor_and_the_scheduler_run_side_by_side(redis_url: str) -> None:
    run_until("sent", program("@processor.handler"), REDIS_URL=redis_url)


def test_the_rabbit_worker_acknowledges_what_it_synced(amqp_url: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("crm-sync")
        action = {"schema": "proca:action:2", "actionId": 1, "contact": {}, "action": {}, "campaign": {}, "org": {}}
        channel.basic_publish("", "crm-sync", json.dumps(action).encode())

        run_until("synced 1", program("run_process"), RABBIT_URL=amqp_url)

        assert channel.queue_declare("crm-sync", passive=True).method.message_count == 0


def test_the_readme_has_no_program_that_is_not_run_here() -> None:
    run = ("inbox=Inbox()", "writer.modify", "concurrency=100", "@processor.handler", "run_process")

    assert all(any(word in source for word in run) for source in PROGRAMS)
    assert len(PROGRAMS) == len(run)


def test_the_readme_has_no_command_that_is_not_run() -> None:
    assert COMMANDS == ["make demo", "make test"]


def test_make_test_runs_every_gate() -> None:
    """This is part of it, so that it cannot be run here; what it would run can be asked."""
    done = subprocess.run(
        ["make", "--dry-run", "-C", str(ROOT), "-o", ".venv/.ready", "test"],
        env={**os.environ, "MAKEFLAGS": "", "MAKELEVEL": "0"},
        capture_output=True,
        text=True,
        check=True,
    )

    gates = ("ruff check", "ruff format", "mypy", "lint-imports", "pytest", "coverage report", "conformance.py")
    assert [gate for gate in gates if gate not in done.stdout] == []


def test_the_extras_that_the_readme_names_can_be_installed() -> None:
    """``pip install '.[all]'`` with a misspelt extra would warn and install less."""
    named = set(re.findall(r"pip install '\.\[([^]]*)\]'", README)) | set(
        re.findall(r"^\|(?:[^|]*\|){2} `(\w+)`", README, re.MULTILINE)
    )

    provided = set(metadata("conquiet").get_all("Provides-Extra") or ())
    assert "all" in named
    assert named <= provided


def test_the_pictures_load_nothing_from_elsewhere() -> None:
    """Whoever looks at one tells no third party: rich would name a font on a foreign host."""
    pictures = list((ROOT / "docs" / "img").glob("*.svg"))
    foreign = re.compile(r"""@import|@font-face|url\(['"]?\w+:|(?:href|src)=['"]\w+:""")

    assert pictures
    assert {picture.name: foreign.findall(picture.read_text(encoding="utf-8")) for picture in pictures} == {
        picture.name: [] for picture in pictures
    }
