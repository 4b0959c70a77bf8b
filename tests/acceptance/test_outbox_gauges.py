"""The gauges of the outbox, as Prometheus reads them from a real relay process, on each database."""

import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from conquiet.testing import free_port, wait_until
from conquiet.transactional import Outbox, create_tables

MODULE = """
import os
from sqlalchemy import create_engine
from conquiet.transactional import OutboxRelay, PublishOutcome

class Away:
    def publish(self, messages):
        return [(PublishOutcome.DEFERRED, "away")] * len(messages)

relay = OutboxRelay(create_engine(os.environ["DB_URL"]), {"shop": Away()}, poll_s=0.1)
"""
LAG_S, UNSERVED_S = 600, 900
AGO = {
    "mysql": "UTC_TIMESTAMP(6) - INTERVAL {} SECOND",
    "postgresql": "now() - INTERVAL '{} seconds'",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now', '-{} seconds')",
}
Show = Callable[[str], tuple[float, float]]


def fill_outbox(url: str) -> None:
    """Write a row for the relay's target and one for a target that no relay has, both some minutes old."""
    engine = create_engine(url)
    create_tables(engine)
    with Session(engine) as session:
        for target, age_s in (("shop", LAG_S), ("typo", UNSERVED_S)):
            Outbox().add(session, target, {"n": 1})
            then = AGO[engine.dialect.name].format(age_s)
            update = text(f"UPDATE conquiet_outbox SET created_at = {then}, due_at = {then} WHERE target = :target")
            session.execute(update, {"target": target.encode()})
        session.commit()
    engine.dispose()


@pytest.fixture
def show(command: Path, clean_environment: Callable[..., dict[str, str]], tmp_path: Path) -> Show:
    """``show(url)``: the age of the oldest waiting row and of the oldest unserved one, in a relay's metrics."""
    (tmp_path / "shop.py").write_text(MODULE)

    def read(port: int) -> tuple[float, float]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                page = answer.read().decode()
        except OSError:  # not up yet
            return 0.0, 0.0
        lag = re.search(r'^conquiet_outbox_lag_seconds{target="shop"} (\S+)$', page, re.MULTILINE)
        unserved = re.search(r'^conquiet_outbox_unserved_seconds{table="conquiet_outbox"} (\S+)$', page, re.MULTILINE)
        return (float(lag[1]), float(unserved[1])) if lag and unserved else (0.0, 0.0)

    def run(url: str) -> tuple[float, float]:
        fill_outbox(url)
        port, log = free_port(), tmp_path / "log"
        with log.open("w") as file:
            worker = subprocess.Popen(
                [command, "worker", "shop:relay", "--metrics-port", str(port)],
                env=clean_environment(DB_URL=url),
                cwd=tmp_path,
                stdout=file,
                stderr=file,
            )
        try:
            wait_until(lambda: all(read(port)), message=log.read_text)
            found = read(port)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0, log.read_text()
        finally:
            worker.kill()
            worker.wait()
        return found

    return run


def check(show: Show, url: str) -> None:
    lag_s, unserved_s = show(url)

    assert LAG_S <= lag_s < LAG_S + 120
    assert UNSERVED_S <= unserved_s < UNSERVED_S + 120


def test_the_ages_of_outbox_rows_are_shown_on_mysql(show: Show, db_url: str) -> None:
    check(show, db_url)


def test_the_ages_of_outbox_rows_are_shown_on_postgresql(show: Show, postgres_url: str) -> None:
    check(show, postgres_url)


def test_the_ages_of_outbox_rows_are_shown_on_sqlite(show: Show, tmp_path: Path) -> None:
    check(show, f"sqlite:///{tmp_path / 'shop.db'}")
