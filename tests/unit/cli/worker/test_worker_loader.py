"""Loading workers by ``module:object``."""

import asyncio
import importlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from sqlalchemy import create_engine

from conquiet.cli.errors import CommandError
from conquiet.cli.worker.worker_loader import find_workers, load_workers
from conquiet.core.backoff import Backoff
from conquiet.core.lifecycle import Health, Status, SupportsConcurrency, SupportsParts, SupportsServerWait
from conquiet.db import DbSession
from conquiet.processor import Processor
from conquiet.rabbit import RabbitConsumer
from conquiet.runtime import Consumer
from conquiet.scheduler import Scheduler
from conquiet.testing import wait_until
from conquiet.transactional import Outbox, OutboxRelay, create_tables
from conquiet.transactional.relay_decisions import PublishOutcome

MODULE = """
from redis.asyncio import Redis
from conquiet.runtime import Consumer
from conquiet.scheduler import Scheduler

async def handle(message, ctx): ...

def build(concurrency=1):
    return Consumer(streams=["orders"], redis=Redis(), handler=handle, concurrency=concurrency)

consumer = build()
several = [build(), build()]
timer = Scheduler(Redis())
number = 17
mixed = [consumer, number]

def plain():
    return build()

plain.__signature__ = __import__("inspect").Signature()

def broken():
    raise RuntimeError("jane@example.org")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"shop_{os.urandom(4).hex()}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / f"{name}_needy.py").write_text("import no_such_library\n")
    (tmp_path / f"{name}_broken.py").write_text("raise RuntimeError('jane@example.org')\n")
    (tmp_path / f"{name}_typo.py").write_text("a = 1\n\ndef broken(:\n    'jane@example.org'\n")
    (tmp_path / f"{name}_imports_typo.py").write_text(f"import {name}_typo\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield name
    for module in [module for module in sys.modules if module.startswith(name)]:
        del sys.modules[module]


class Target:
    is_up = False

    def publish(self, messages: Sequence[Any]) -> Any:
        if not self.is_up:
            raise ConnectionRefusedError
        return [(PublishOutcome.PUBLISHED, "")] * len(messages)


@pytest.mark.parametrize(("path", "count"), [("consumer", 1), ("several", 2), ("build", 1)])
def test_a_worker_a_list_and_a_function_can_be_run(shop: str, path: str, count: int) -> None:
    assert len(load_workers(f"{shop}:{path}", concurrency=None)) == count


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("nowhere:x", "there is no module 'nowhere'"),
        ("{shop}", "is not of the form module:object"),
        ("{shop}:nothing", "has no 'nothing'"),
        ("{shop}:number", "is a int, which cannot be run"),
        ("{shop}:mixed", "is a list, which cannot be run"),
        ("{shop}:broken", r"failed with RuntimeError \(shop_[0-9a-f]+\.py, line 23\)"),
        ("{shop}_needy:x", "it needs 'no_such_library'"),
        ("{shop}_broken:x", r"RuntimeError at its import \(shop_[0-9a-f]+_broken\.py, line 1\)"),
        ("{shop}_typo:x", r"SyntaxError at its import \(shop_[0-9a-f]+_typo\.py, line 3\)"),
        ("{shop}_imports_typo:x", r"SyntaxError at its import \(shop_[0-9a-f]+_typo\.py, line 3\)"),
    ],
)
def test_a_target_that_cannot_run_is_named_without_its_error_text(shop: str, target: str, complaint: str) -> None:
    with pytest.raises(CommandError, match=complaint) as caught:
        load_workers(target.format(shop=shop), concurrency=None)

    assert caught.value.fix
    assert "jane@" not in str(caught.value)


def test_concurrency_goes_to_a_function_or_to_what_is_built(shop: str) -> None:
    load_workers(f"{shop}:build", concurrency=7)
    load_workers(f"{shop}:several", concurrency=7)

    built = importlib.import_module(shop)
    assert [consumer.health().concurrency for consumer in built.several] == [7, 7]
    with pytest.raises(CommandError, match="takes no concurrency"):
        load_workers(f"{shop}:plain", concurrency=7)
    with pytest.raises(CommandError, match="has no concurrency") as caught:
        load_workers(f"{shop}:timer", concurrency=7)
    assert "--processes" in caught.value.fix


class Nowhere:
    """A target of a relay that never publishes."""

    def publish(self, messages: Any) -> Any:
        raise NotImplementedError


def test_every_kind_of_worker_can_be_run_and_is_not_ready_before() -> None:
    async def handler(_message: Any, _ctx: Any) -> None: ...

    redis = Redis()
    engine = create_engine("sqlite://")
    workers = [
        Consumer(streams=["orders"], redis=redis, handler=handler),
        Processor(redis, ["orders"]),
        Scheduler(redis),
        RabbitConsumer("amqp://127.0.0.1", "orders", lambda _message: True),
        OutboxRelay(engine, {"orders": Nowhere()}),
    ]

    found = find_workers(workers)

    assert [worker.health().ready for worker in found] == [False] * 5
    assert [worker.abandoned for worker in found] == [0] * 5
    for worker in found:
        worker.stop()
    assert find_workers(object()) == find_workers([workers[0], object()]) == find_workers(Consumer) == []
    engine.dispose()
    asyncio.run(redis.aclose())


class Custom:
    """A worker of the user's own."""

    name = "Custom"
    abandoned = 0

    def run(self) -> None: ...

    def stop(self) -> None: ...

    def health(self) -> Health:
        return Health(status=Status.RUNNING)

    def close(self) -> None: ...


def test_any_object_that_satisfies_the_protocol_can_be_run() -> None:
    own = Custom()

    assert find_workers([own]) == [own]
    assert find_workers(Custom) == []


OWN = """
from conquiet import Health, Status

class Own:
    name, abandoned = "own", 0

    def __init__(self):
        self.called = []

    def set_concurrency(self, concurrency):
        self.called.append(concurrency)

    def set_only(self, only):
        self.called.append(tuple(only))

    def set_wait_s(self, wait_s):
        self.called.append(wait_s)

    def run(self): ...
    def stop(self): ...
    def health(self): return Health(status=Status.NEW)
    def close(self): ...

own = Own()
"""


def test_a_worker_of_the_users_own_follows_the_options(shop: str, tmp_path: Path) -> None:
    """The command checks for the optional protocols of a worker, and for nothing else."""
    (tmp_path / f"{shop}_own.py").write_text(OWN)

    (own,) = load_workers(f"{shop}_own:own", concurrency=7, only=("imports",))

    assert own.called == [7, 0.0, ("imports",)]  # type: ignore[attr-defined]
    assert isinstance(own, SupportsConcurrency)
    assert isinstance(own, SupportsParts)
    assert isinstance(own, SupportsServerWait)


APP = """
from conquiet import App

app = App("shop", redis="redis://127.0.0.1:1/0")

@app.handler("order.paid")
async def book(order: dict) -> None: ...
"""


def test_an_app_is_run_whole_or_in_parts(shop: str, tmp_path: Path) -> None:
    (tmp_path / f"{shop}_app.py").write_text(APP)

    (app,) = load_workers(f"{shop}_app:app", concurrency=7, only=("handlers", "relay"))

    assert app.name == "shop"
    assert app.assembly.only == {"handlers", "relay"}  # type: ignore[attr-defined]


def test_parts_of_something_that_has_none_are_refused(shop: str) -> None:
    with pytest.raises(CommandError, match="has no parts to choose from") as caught:
        load_workers(f"{shop}:consumer", concurrency=None, only=("relay",))
    assert "--only is for an App" in caught.value.fix


def test_a_wrong_declaration_is_shown_with_its_sentence_and_its_place(shop: str, tmp_path: Path) -> None:
    (tmp_path / f"{shop}_app.py").write_text(f'{APP}\napp.handler("order.paid")(book)\n')

    with pytest.raises(CommandError, match=r"_app\.py, line 9\): event 'order.paid' has a handler already"):
        load_workers(f"{shop}_app:app", concurrency=None)


@pytest.mark.parametrize(
    "start",
    [
        "app.main()",
        "asyncio.run(app.run())",
        "asyncio.run(Scheduler(Redis()).run())",
        "Purger(create_engine('sqlite://'), inbox=Inbox(), retention=DatabaseRetention()).run()",
    ],
)
def test_a_module_that_starts_its_worker_at_import_is_refused(shop: str, tmp_path: Path, start: str) -> None:
    """The start would not return: the command could not report health or apply its options."""
    imports = """import asyncio
from redis.asyncio import Redis
from sqlalchemy import create_engine
from conquiet.scheduler import Scheduler
from conquiet.transactional import DatabaseRetention, Inbox, Purger
"""
    (tmp_path / f"{shop}_starts.py").write_text(f"{imports}{APP}\n{start}\n")

    with pytest.raises(CommandError, match=r"_starts\.py, line \d+\): .* cannot start: .*__name__ == \"__main__\""):
        load_workers(f"{shop}_starts:app", concurrency=None)


def test_a_relay_is_ready_only_while_its_targets_can_be_reached(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'outbox.db'}")
    create_tables(engine)
    target = Target()
    relay = OutboxRelay(engine, {"ledger": target}, poll_s=0.01, backoff=Backoff(base_s=0.01, cap_s=0.01))
    [worker] = find_workers(relay)
    assert not worker.health().ready

    thread = threading.Thread(target=relay.run)
    thread.start()
    try:
        wait_until(lambda: worker.health().ready, message="nothing to do")
        with DbSession(engine) as session:
            Outbox().add(session, "ledger", {"n": 1})
        wait_until(lambda: not worker.health().ready, message="the target is down")
        target.is_up = True
        wait_until(lambda: worker.health().ready, message="the target is up")
    finally:
        relay.stop()
        thread.join()
    relay.close()
    engine.dispose()
