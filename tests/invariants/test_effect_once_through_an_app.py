"""Every message has its effect once through one unchanged handler of an ``App``, on Redis and on RabbitMQ.

The storm of ``test_effect_once_for_each_session``: workers are killed at four named points, paused past the claim
threshold (Redis) and lose replies to COMMIT; the database is killed and restarted. On a Redis Cluster the stream's slot
moves to another master meanwhile, and its master and replica change places.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.invariants.histories import rabbit_facts, redis_facts
from tests.invariants.test_effect_once_for_each_session import Cell, open_redis

from conquiet.processor.keys import keys_of
from conquiet.testing import FaultProxy, MySQLServer, PostgresServer

WORKER = Path(__file__).with_name("app_worker.py")
TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
POINTS = ("after-inbox", "mid-handler", "before-commit", "after-commit")
KILLS_EACH = 25 if TORTURE else 1
MESSAGES = 2_000 if TORTURE else 40
DATABASES = {"mysql": MySQLServer, "postgresql": PostgresServer}
Database = MySQLServer | PostgresServer


class AppCell(Cell):
    """A cell with workers that run an ``App``: its retries wait in the delayed set."""

    worker = WORKER
    through = "App, "

    def is_settled(self) -> bool:
        """Return whether no message is unread, pending, delayed or ready."""
        if self._broker != "redis":
            return super().is_settled()
        with open_redis(self._url) as client:
            # A retry that left the delayed set between the two looks is a newer entry.
            newest = client.xinfo_stream(self._source)["last-generated-id"]
            return bool(
                super().is_settled()
                and not client.zcard(keys_of(self._source).delayed)
                and client.xinfo_stream(self._source)["last-generated-id"] == newest
            )


MakeCell = Callable[..., tuple[AppCell, Database]]


@pytest.fixture(scope="module")
def start_database() -> Iterator[Callable[[str], Database]]:
    """``start_database("mysql")``: a server that the storms of this file may kill and restart, one after the other."""
    started: dict[str, Database] = {}

    def start(name: str) -> Database:
        if name not in started:
            started[name] = DATABASES[name]().start()
        return started[name]

    yield start
    for server in started.values():
        server.stop()


@pytest.fixture
def make_cell(
    fault_proxy: Callable[[str], FaultProxy],
    request: pytest.FixtureRequest,
    key_prefix: str,
    new_history: Callable[..., Any],
    start_database: Callable[[str], Database],
) -> Iterator[MakeCell]:
    made: list[AppCell] = []

    def make(broker: str, database: str, **options: Any) -> tuple[AppCell, Database]:
        server = start_database(database)
        if broker == "rabbitmq":
            url = request.getfixturevalue("amqp_url")
            facts = rabbit_facts(request.getfixturevalue("rabbitmq_server").api, queue="classic, durable")
        else:
            in_cluster = broker == "redis cluster"
            url = request.getfixturevalue("redis_cluster").url if in_cluster else request.getfixturevalue("redis_url")
            with redis.Redis.from_url(url.partition("?")[0]) as client:
                facts = redis_facts(client)
            broker = "redis"
        options |= {"kind": "AsyncSession", "history": new_history, "facts": facts}
        made.append(AppCell(server, fault_proxy(server.url), broker, url, f"{key_prefix}app", **options))
        return made[-1], server

    yield make
    for cell in made:
        cell.close()


def on_rabbit(database: str) -> Any:
    return pytest.param("rabbitmq", database, marks=pytest.mark.xdist_group("rabbitmq"))


CELLS = [("redis", "mysql"), on_rabbit("postgresql")]
if TORTURE:
    CELLS += [("redis", "postgresql"), on_rabbit("mysql"), ("redis cluster", "postgresql")]


@pytest.mark.timeout(3_600 if TORTURE else 300)
@pytest.mark.parametrize(("broker", "database"), CELLS)
def test_every_message_has_its_effect_once_through_an_app(
    make_cell: MakeCell, broker: str, database: str, request: pytest.FixtureRequest
) -> None:
    cell, server = make_cell(broker, database)
    cell.send(MESSAGES)
    points = [*POINTS * KILLS_EACH, *["pause"] * (0 if broker == "rabbitmq" else KILLS_EACH)]

    def restart() -> None:
        server.kill()
        server.restart()
        if broker == "redis cluster":
            cluster = request.getfixturevalue("redis_cluster")
            for change in (cluster.move_slot, cluster.switch_master):
                with cell.history.outage(change.__name__.replace("_", " ")):
                    change(cell.source)

    started = time.monotonic()
    cell.run(points, lost_commits=KILLS_EACH * 2, restart=restart)

    took_s, done = time.monotonic() - started, dict(cell.done)
    print(f"\n{server.name}, {broker}, App: {cell.sent} messages in {took_s:.0f} s, {done}")  # noqa: T201
    assert cell.problems() == []
    assert cell.history.judge()["examples"] == {}
    assert cell.done["killed"] + cell.done["paused"] == len(points)
    assert cell.done["restarted"] == 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("bug", "point", "seen"), [("no-inbox", "after-commit", "twice"), ("commits-itself", "mid-handler", "half")]
)
def test_a_planted_bug_in_an_app_is_found(make_cell: MakeCell, bug: str, point: str, seen: str) -> None:
    cell, _ = make_cell("redis", "mysql", bug=bug)
    cell.send(30)

    cell.run([point] * 2)

    assert any(seen in problem for problem in cell.problems()), cell.problems()
