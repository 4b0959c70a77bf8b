"""The pure parts of ``conquiet worker``: restarts, targets, reload, pulse, log lines, systemd."""

import asyncio
import importlib
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis
from sqlalchemy import create_engine

from conquiet.bridge import OutboxRelay
from conquiet.cli.failures import CommandError
from conquiet.cli.worker.child import loop_factory
from conquiet.cli.worker.logs import FactsFormatter
from conquiet.cli.worker.notify import notify_systemd
from conquiet.cli.worker.pulse import Pulse
from conquiet.cli.worker.reload import SourceWatch
from conquiet.cli.worker.restarts import CRASHES, Next, RestartPolicy
from conquiet.cli.worker.runnables import adapt
from conquiet.cli.worker.targets import load_runnables
from conquiet.processor import Processor
from conquiet.rabbit import RabbitConsumer
from conquiet.runtime import Consumer
from conquiet.scheduler import Scheduler

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
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield name
    for module in [module for module in sys.modules if module.startswith(name)]:
        del sys.modules[module]


@pytest.mark.parametrize(("path", "count"), [("consumer", 1), ("several", 2), ("build", 1)])
def test_a_worker_a_list_and_a_function_can_be_run(shop: str, path: str, count: int) -> None:
    assert len(load_runnables(f"{shop}:{path}", concurrency=None)) == count


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("nowhere:x", "there is no module 'nowhere'"),
        ("{shop}", "is not of the form module:object"),
        ("{shop}:nothing", "has no 'nothing'"),
        ("{shop}:number", "is a int, which cannot be run"),
        ("{shop}:mixed", "is a list, which cannot be run"),
        ("{shop}:broken", "failed with RuntimeError"),
        ("{shop}_needy:x", "it needs 'no_such_library'"),
        ("{shop}_broken:x", "RuntimeError at its import"),
    ],
)
def test_what_cannot_be_run_is_said_in_a_sentence_without_the_errors_text(
    shop: str, target: str, complaint: str
) -> None:
    with pytest.raises(CommandError, match=complaint) as caught:
        load_runnables(target.format(shop=shop), concurrency=None)

    assert caught.value.fix
    assert "jane@" not in str(caught.value)


def test_concurrency_goes_to_a_function_or_to_what_is_built(shop: str) -> None:
    load_runnables(f"{shop}:build", concurrency=7)
    load_runnables(f"{shop}:several", concurrency=7)

    built = importlib.import_module(shop)
    assert [consumer.health().slots for consumer in built.several] == [7, 7]
    with pytest.raises(CommandError, match="takes no concurrency"):
        load_runnables(f"{shop}:plain", concurrency=7)
    with pytest.raises(CommandError, match="has no concurrency") as caught:
        load_runnables(f"{shop}:timer", concurrency=7)
    assert "--processes" in caught.value.fix


class Nowhere:
    """A target of a relay that never publishes."""

    def publish(self, letters: Any) -> Any:
        raise NotImplementedError


def test_everything_a_worker_can_run_has_a_face_and_is_not_ready_before_it_runs() -> None:
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

    faces = [adapt(worker) for worker in workers]

    assert [face.name for face in faces if face] == [
        "Consumer", "Processor", "Scheduler", "RabbitConsumer", "OutboxRelay",
    ]  # fmt: skip
    assert [face.ready() for face in faces if face] == [False] * 5
    for face in faces:
        assert face is not None
        face.stop()
    assert adapt(object()) is None
    engine.dispose()
    asyncio.run(redis.aclose())


# ---------------------------------------------------------------- restarts
def test_a_crash_is_followed_by_a_restart_with_growing_pauses() -> None:
    policy = RestartPolicy()

    decisions = [policy.decide(1, now_s=number * 0.1) for number in range(CRASHES - 1)]

    assert [decision.next for decision in decisions] == [Next.RESTART] * (CRASHES - 1)
    assert decisions[-1].delay_s > decisions[0].delay_s


def test_a_crash_loop_is_given_up_but_rare_crashes_never_are() -> None:
    looping, rare = RestartPolicy(), RestartPolicy()

    assert [looping.decide(-9, now_s=number) for number in range(CRASHES)][-1].next is Next.GIVE_UP
    assert {rare.decide(-9, now_s=number * 61.0).next for number in range(20)} == {Next.RESTART}


def test_a_good_end_is_not_restarted_and_what_cannot_start_ends_the_whole() -> None:
    assert RestartPolicy().decide(0, now_s=0).next is Next.FINISHED
    assert RestartPolicy().decide(2, now_s=0).next is Next.CANNOT_START


# ---------------------------------------------------------------- small parts
def test_a_pulse_counts_only_from_the_very_process_and_only_while_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulse = Pulse.create(tmp_path / "pulse", 2)
    pulse.beat(1, pid=7, ready=True)

    assert pulse.is_ready(1, 7)
    assert not pulse.is_ready(1, 8), "a row of the process before"
    assert not pulse.is_ready(0, 7)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 60)
    monkeypatch.setattr("conquiet.cli.worker.pulse.time", later)
    assert not pulse.is_ready(1, 7), "an event loop that is blocked beats no more"
    pulse.close()


def test_source_files_are_watched_and_virtual_environments_are_not(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    (tmp_path / "shop.py").write_text("1")
    watch = SourceWatch(tmp_path)
    assert watch.changed() is None

    (tmp_path / "venv" / "library.py").write_text("1")
    (tmp_path / "notes.txt").write_text("1")
    assert watch.changed() is None
    (tmp_path / "new.py").write_text("1")
    assert watch.changed() == "new.py"
    (tmp_path / "shop.py").unlink()
    assert watch.changed() == "shop.py"


def test_log_lines_carry_their_facts_and_cannot_be_forged() -> None:
    record = logging.makeLogRecord({"msg": "message failed", "name": "x", "stream": "orders\nINFO forged", "n": 3})

    line = FactsFormatter().format(record)

    assert line.endswith("x: message failed stream=orders\\nINFO forged n=3")


def test_systemd_is_told_if_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify_systemd("READY=1")

    path = f"/tmp/cq-{os.urandom(4).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        assert notify_systemd("READY=1")
        assert listener.recv(100) == b"READY=1"
    Path(path).unlink()
    assert not notify_systemd("READY=1"), "nobody there is no error"


def test_a_worker_runs_on_uvloop_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        assert type(runner.get_loop()).__module__.startswith("uvloop")

    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_factory() is None
