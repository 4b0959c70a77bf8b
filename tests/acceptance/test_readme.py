"""The programs of README.md and docs/programs.md are run unchanged, on real servers.

Its first command, ``make demo``, is run in ``test_demo.py``.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pika
import pytest
import redis
from sqlalchemy import create_engine, text
from tests.redis_clients import expire_leases

from conquiet.processor import NewMessage, SyncEmitter
from conquiet.rabbit import DeliveryFilter, RabbitDeadLetters
from conquiet.testing import wait_until

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "programs.md").read_text(encoding="utf-8")
PROGRAMS: list[str] = re.findall(r"```python\n(.*?)```", README + PAGE, re.DOTALL)

HANGS_S = 300.0
"""Only a program that hangs takes as long as this, on a busy machine too."""

KILLED_ORDERS = 400

(INIT, WORK) = re.findall(r"In production: (.*), then (.*)$", README, re.MULTILINE)[0]
"""The commands that a comment of the first program names."""

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


def run_and_fail(source: str, **urls: str) -> str:
    """Run the program, which must end with an error; return its output."""
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, **urls},
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout + done.stderr


def run_until(said: str, source: str, *, settled: Callable[[], bool] = lambda: True, **urls: str) -> None:
    """Run the program until it has printed something and the servers are settled; it must then end well on SIGTERM."""
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
            timeout_s=HANGS_S,
            message=f"the README's program said {output}",
        )
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(HANGS_S)
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


def test_the_payment_that_failed_once_is_made_by_the_next_start(shop: str, redis_url: str) -> None:
    """Its idempotency key makes the next enqueue a no-op: only recovery delivers it again."""
    client: Any = redis.Redis.from_url(redis_url)
    engine = create_engine(shop)
    source = program("inbox=Inbox()")
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE account RENAME TO account_of_old"))
    output = run_and_fail(source, DB_URL=shop, REDIS_URL=redis_url)
    pending = client.xpending("payments", "billing")["pending"]
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE account_of_old RENAME TO account"))
    engine.dispose()
    before = accounts(shop)[7]

    run_until(
        "paid",
        source,
        settled=lambda: client.xpending("payments", "billing")["pending"] == 0,
        DB_URL=shop,
        REDIS_URL=redis_url,
    )

    assert "DbWriteError" in output
    assert (pending, before) == (1, 5000)
    assert client.xlen("payments") == 1
    assert accounts(shop)[7] == 4000
    client.close()


def test_the_payment_survives_a_kill_while_it_is_made(shop: str, redis_url: str) -> None:
    client: Any = redis.Redis.from_url(redis_url)
    source = program("inbox=Inbox()")
    killed = source.replace('    print("paid", flush=True)', "    os.kill(os.getpid(), 9)")
    assert killed != source

    done = subprocess.run(
        [sys.executable, "-c", killed],
        env={**os.environ, "DB_URL": shop, "REDIS_URL": redis_url},
        timeout=HANGS_S,
        check=False,
    )
    assert done.returncode == -9
    run_until(
        "paid",
        source,
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


def test_rows_are_changed_by_the_next_start_after_a_failure(shop: str) -> None:
    """The first run fails between the insert and the change; a second insert of the row is not an error."""
    source = program("writer.modify")
    broken = source.replace('row["cents"] + 250', 'row["cents"] + 1 / 0')
    assert broken != source

    output = run_and_fail(broken, DB_URL=shop)
    between = accounts(shop)
    done = subprocess.run(
        [sys.executable, "-c", source], env={**os.environ, "DB_URL": shop}, capture_output=True, text=True, check=True
    )

    assert "ZeroDivisionError" in output
    assert between == {7: 5000, 8: 0}
    assert done.stdout == "changed 1\n"
    assert accounts(shop)[8] == 250


def failing_once(source: str, line: str) -> str:
    """The program, with a handler that raises when it is first called."""
    indent = line[: len(line) - len(line.lstrip())]
    first = (
        f"{indent}if not globals().setdefault('failed', []):\n{indent}    failed.append(1)\n{indent}    raise OSError\n"
    )
    assert line in source
    return source.replace(line, first + line)


def test_the_engine_handles_the_message_that_failed_once(redis_url: str) -> None:
    """A bare engine leaves it pending; it is claimed when it is stale, by the same engine or another."""
    client: Any = redis.Redis.from_url(redis_url)
    source = program("concurrency=100").replace("concurrency=100", "concurrency=100, claim_idle_ms=1_000")

    run_until(
        "handled 1",
        failing_once(source, '    print("handled", message.data["n"]'),
        settled=lambda: all(group["pending"] == 0 for group in client.xinfo_groups("numbers")),
        REDIS_URL=redis_url,
    )
    client.close()


def test_the_processor_retries_the_message_that_failed_once(redis_url: str) -> None:
    run_until("sent", failing_once(program("@processor.handler"), '    print("sent", flush=True)'), REDIS_URL=redis_url)


def test_the_engine_handles_the_message(redis_url: str) -> None:
    run_until("handled 1", program("concurrency=100"), REDIS_URL=redis_url)


def test_the_processor_and_the_scheduler_run_side_by_side(redis_url: str) -> None:
    run_until("sent", program("@processor.handler"), REDIS_URL=redis_url)


def test_the_rabbit_worker_loses_nothing_on_an_ordinary_queue_and_recovers(amqp_url: str) -> None:
    """20 orders published by pika, one broken: it fails twice, is kept, is corrected and replayed."""
    source = program("run_process")
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        for number in range(20):
            order = {"order": number} if number != 7 else {"odrer": number}
            channel.basic_publish("", "orders", json.dumps(order).encode())

        def depth(queue: str) -> int:
            with connection.channel() as asking:
                try:
                    return int(asking.queue_declare(queue, passive=True).method.message_count)
                except pika.exceptions.ChannelClosedByBroker:
                    return -1

        run_until("synced 19", source, settled=lambda: depth("orders.dead") == 1, RABBIT_URL=amqp_url)
        assert depth("orders") == 0

        fixed = source.replace('"order" not in message', "not message").replace('message["order"]', "message")
        replayed = asyncio.run(RabbitDeadLetters(amqp_url, "orders.dead").replay(DeliveryFilter()))
        run_until("synced {'odrer': 7}", fixed, settled=lambda: depth("orders") == 0, RABBIT_URL=amqp_url)

        assert replayed.replayed == 1
        assert (depth("orders"), depth("orders.dead")) == (0, 0)


def test_the_first_program_is_an_app_of_at_most_25_lines() -> None:
    first = PROGRAMS[0]

    assert "@app.handler" in first
    assert "session: AsyncSession" in first
    assert len(first.splitlines()) <= 25


def test_the_app_books_the_order_it_emits(shop: str, redis_url: str) -> None:
    run_until("booked", PROGRAMS[0], DB_URL=shop, REDIS_URL=redis_url)

    assert accounts(shop)[7] == 6_000


def test_the_app_as_it_stands_survives_a_kill(shop: str, redis_url: str) -> None:
    """Killed with orders in flight and started again: each of them is booked once."""
    client: Any = redis.Redis.from_url(redis_url)
    with SyncEmitter(client, "shop") as emitter:
        emitter.emit_many(NewMessage("order.paid", {"account": 7, "cents": 1}) for _ in range(KILLED_ORDERS))
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAMS[0]],
        env={**os.environ, "DB_URL": shop, "REDIS_URL": redis_url},
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_until(
            lambda: running.poll() is not None or accounts(shop)[7] >= 5_000 + KILLED_ORDERS // 10,
            timeout_s=HANGS_S,
        )
    finally:
        running.kill()  # SIGKILL
        running.wait(HANGS_S)
    at_the_kill = accounts(shop)[7]
    expire_leases(redis_url, "shop", "shop")

    run_until(
        "booked",
        PROGRAMS[0],
        settled=lambda: accounts(shop)[7] >= 6_000 + KILLED_ORDERS,
        DB_URL=shop,
        REDIS_URL=redis_url,
    )

    assert running.returncode == -signal.SIGKILL
    assert at_the_kill < 6_000 + KILLED_ORDERS
    assert accounts(shop)[7] == 6_000 + KILLED_ORDERS
    assert client.xpending("shop", "shop")["pending"] == 0
    client.close()


def test_the_app_runs_by_the_commands_below_it(
    redis_url: str, tmp_path: Path, command: Path, clean_environment: Callable[..., dict[str, str]]
) -> None:
    (tmp_path / "shop.py").write_text(PROGRAMS[0], encoding="utf-8")
    environment = clean_environment(PATH=f"{command.parent}:{os.environ['PATH']}", REDIS_URL=redis_url)
    variables, create, start = [line.replace("redis://localhost:6379/0", redis_url) for line in COMMANDS[2:]]
    steps = (f"{variables}\n{create}\nexec {start}", f"{variables}\n{INIT} && exec {WORK}")
    log = tmp_path / "log"

    for number, script in enumerate(steps):
        with log.open("w") as output:
            worker = subprocess.Popen(
                ["bash", "-c", script], env=environment, cwd=tmp_path, stdout=output, stderr=output, text=True
            )
        try:
            if number:
                with redis.Redis.from_url(redis_url) as client, SyncEmitter(client, "shop") as emitter:
                    emitter.emit("order.paid", {"account": 7, "cents": 1_000}, id="order-4712")
            wait_until(lambda: "booked" in log.read_text(), timeout_s=HANGS_S, message=log.read_text)
        finally:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(HANGS_S) == 0, log.read_text()

    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        assert connection.execute("SELECT cents FROM account").fetchall() == [(2_000,)]


def test_the_readme_has_no_program_that_is_not_run_here() -> None:
    run = ("@app.handler", "inbox=Inbox()", "writer.modify", "concurrency=100", "@processor.handler", "run_process")

    assert all(any(word in source for word in run) for source in PROGRAMS)
    assert len(PROGRAMS) == len(run)


def test_the_readme_has_no_command_that_is_not_run() -> None:
    assert COMMANDS[:2] == ["make demo", "make test"]
    assert [line.split()[0] for line in COMMANDS[2:]] == ["export", "python", "python"]


def test_make_test_runs_every_gate() -> None:
    """This test is part of it, so it cannot be run here; its steps can be listed."""
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
    """Viewing one contacts no third party: rich would name a font on a foreign host."""
    pictures = list((ROOT / "docs" / "img").glob("*.svg"))
    foreign = re.compile(r"""@import|@font-face|url\(['"]?\w+:|(?:href|src)=['"]\w+:""")

    assert pictures
    assert {picture.name: foreign.findall(picture.read_text(encoding="utf-8")) for picture in pictures} == {
        picture.name: [] for picture in pictures
    }
