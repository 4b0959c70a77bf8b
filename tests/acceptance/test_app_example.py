"""``examples/shop_app.py`` as its reader runs it: tables by command, a worker by command, and a kill -9."""

import json
import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from redis import Redis
from sqlalchemy import create_engine, text
from tests.redis_clients import expire_leases

from conquiet.processor import NewMessage, SyncEmitter
from conquiet.testing import free_port, wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "shop_app.py"
ORDERS = 300
CODE_LINES = 27


def ready_pid(port: int) -> int | None:
    """Return the pid of the only process once it is ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            (process,) = json.load(answer)["processes"]
    except urllib.error.HTTPError as error:  # not ready
        error.close()
        return None
    except OSError:  # not listening
        return None
    return int(process["pid"])


def receipts(log: Path) -> set[str]:
    """Return the orders with a printed receipt."""
    return {line.removeprefix("receipt for ") for line in log.read_text().splitlines() if "receipt" in line}


def test_the_example_is_short() -> None:
    lines = [line for line in EXAMPLE.read_text(encoding="utf-8").splitlines() if line.strip()]

    assert len(lines) <= CODE_LINES


def test_a_killed_worker_loses_no_order_and_books_none_twice(
    redis_url: str,
    db_url: str,
    tmp_path: Path,
    command: Path,
    clean_environment: Callable[..., dict[str, str]],
) -> None:
    shutil.copy(EXAMPLE, tmp_path)
    environment = clean_environment(CONQUIET_REDIS_URL=redis_url, CONQUIET_DB_URL=db_url)
    engine = create_engine(db_url)
    made = subprocess.run(
        [command, "db", "init", "shop_app:app"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (made.returncode, made.stdout) == (0, "the tables of shop are there\n"), made.stderr
    orders = [f"order-{number}" for number in range(ORDERS)]

    def emit_all() -> None:
        with Redis.from_url(redis_url) as client, SyncEmitter(client, "shop") as emitter:
            emitter.emit_many(NewMessage("order.paid", {"order_id": order_id, "cents": 100}) for order_id in orders)

    def booked() -> Counter[str]:
        with engine.connect() as connection:
            return Counter(connection.execute(text("SELECT order_id FROM ledger")).scalars())

    port = free_port()
    log = tmp_path / "worker.log"
    with log.open("w") as output:
        worker = subprocess.Popen(
            [command, "worker", "shop_app:app", "--health-port", str(port), "--concurrency", "4"],
            env=environment, cwd=tmp_path, stdout=output, stderr=output, text=True,
        )  # fmt: skip
        try:
            pid = wait_until(lambda: ready_pid(port), message=log.read_text)
            assert pid is not None
            emit_all()
            wait_until(lambda: len(booked()) >= 20, message=log.read_text)
            assert len(booked()) < ORDERS
            os.kill(pid, signal.SIGKILL)
            expire_leases(redis_url, "shop", "shop")
            wait_until(lambda: len(booked()) == ORDERS, timeout_s=300, message=log.read_text)
            # A printed line has no inbox: the kill may have repeated some, so lines are not counted.
            wait_until(lambda: receipts(log) == set(orders), message=log.read_text)
        finally:
            worker.send_signal(signal.SIGTERM)
            ended = worker.wait(timeout=60)

    assert ended == 0, log.read_text()
    assert booked() == Counter(orders)
    engine.dispose()
