"""A message that kills its process, among others that do nothing wrong: none of the others is dead-lettered or stuck.

The broker marks everything in the killed process's prefetch window as redelivered, and a quorum queue counts a delivery
for all of it. The process is started again each time, as a supervisor would: by a program that imports everything once
and forks for each line that it reads.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from tests.invariants.histories import History, Row, rabbit_facts

from conquiet.testing import wait_until
from conquiet.testing.rabbitmq import RabbitMQServer

LIMIT = 6
KILLER = 13

WORKER = """
import asyncio, logging, os, signal, sys
from conquiet.rabbit import run_process
from tests.invariants import wire
from tests.invariants.recorder import Recorder
for _ in sys.stdin:
    if not (child := os.fork()):
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
url, path, history, concurrency, settle, guard = sys.argv[1:]
record = Recorder(history)
wire.note_queue_acks(record)
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
logging.disable(logging.CRITICAL)
async def syncer(message):
    number = message["number"]
    record("deliver", id=number)
    wire.delivered(number)
    if number == 13:
        record("fault", kind="kill -9", target=os.getpid(), point="in the syncer")
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(0.005)
    os.write(log, b"%d\\n" % number)
    record("commit", id=number)
    return True
sys.exit(run_process(url, "work", syncer, concurrency=int(concurrency), settle=settle, poison_guard=guard == "guard"))
"""


class Storm:
    def __init__(self, url: str, folder: Path, new_history: Callable[[str], History], *, quorum: bool) -> None:
        self.url, self.folder, self.quorum = url, folder, quorum
        self._new_history = new_history
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.channel.queue_declare("dead", durable=True)
        arguments: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        if quorum:
            arguments |= {"x-queue-type": "quorum", "x-delivery-limit": LIMIT}
        self.channel.queue_declare("work", durable=True, arguments=arguments)
        self.forker: subprocess.Popen[bytes] | None = None
        self.starts = self.kills = 0
        self.options: list[str] = []

    def publish(self, number: int) -> None:
        self.history = self._new_history(" ".join(self.options))
        for n in range(number):
            # A classic queue gives it back without end.
            expected = "effect" if n != KILLER else "dead" if self.quorum else "unsure"
            self.history.record("enqueue", id=n, expect=expected)
            body = json.dumps({"number": n}).encode()
            self.channel.basic_publish("", "work", body, pika.BasicProperties(delivery_mode=2), mandatory=True)

    def keep_running(self) -> None:
        """Start the worker again when the message has killed it."""
        ends = self.folder / "ends"
        if self.forker is None:
            places = [self.url, str(self.folder / "handled"), str(self.history.folder)]
            command = [sys.executable, "-c", WORKER, *places, *self.options]
            with ends.open("wb") as output:
                self.forker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, start_new_session=True)
        assert self.forker.poll() is None
        assert self.forker.stdin is not None
        found = ends.read_text().split()
        assert set(found) <= {"-9"}
        self.kills = len(found)
        if self.kills == self.starts:
            self.forker.stdin.write(b"\n")
            self.forker.stdin.flush()
            self.starts += 1

    def runs(self) -> list[int]:
        path = self.folder / "handled"
        return [int(line) for line in path.read_bytes().split()] if path.exists() else []

    def handled(self) -> set[int]:
        return set(self.runs())

    def judge(self, dead: Counter[int]) -> dict[str, Any]:
        """End the worker, and return the anomalies of the history."""
        self.history.record("drained")
        self._end()
        leaked = self.history.leaks()
        self.history.record("state", effects=self.runs(), dead=sorted(dead.elements()), leaked=leaked)
        found: dict[str, Any] = self.history.judge()["examples"]
        return found

    def dead(self) -> Counter[int]:
        dead: Counter[int] = Counter()
        while (taken := self.channel.basic_get("dead", auto_ack=True))[0] is not None:
            dead[json.loads(taken[2])["number"]] += 1
        return dead

    def _end(self) -> None:
        if self.forker is not None:
            os.killpg(self.forker.pid, signal.SIGKILL)  # with the process that it forked last
            self.forker.communicate()
            self.forker = None

    def close(self) -> None:
        self._end()
        self.connection.close()


@pytest.fixture
def storm(
    request: pytest.FixtureRequest,
    rabbitmq_server: RabbitMQServer,
    amqp_url: str,
    tmp_path: Path,
    new_history: Callable[..., History],
) -> Iterator[Storm]:
    kind = "quorum" if request.param else "classic"

    def a_history(options: str) -> History:
        return new_history(
            f"killing message in RabbitMQ {kind} {options}",
            Row("RabbitConsumer, a message that kills its process", "none", f"one RabbitMQ, {kind} queue"),
            seed=0,
            promise={"effects": "at least once", "commits": True},
            servers=[rabbit_facts(rabbitmq_server.api, queue=f"{kind}, durable")],
        )

    made = Storm(amqp_url, tmp_path, a_history, quorum=request.param)
    yield made
    made.close()


@pytest.mark.parametrize("storm", [True], ids=["quorum"], indirect=True)
@pytest.mark.parametrize(("concurrency", "innocents"), [(1, 50), (10, 50), (50, 200)])
@pytest.mark.parametrize(("settle", "guard"), [("redelivered", "no"), ("delivery_count", "guard")])
def test_the_delivery_limit_ends_the_killer_and_no_other(
    storm: Storm, concurrency: int, innocents: int, settle: str, guard: str
) -> None:
    storm.options = [str(concurrency), settle, guard]
    storm.publish(innocents)

    def story() -> str:
        return f"{len(storm.handled())} handled"

    def killer_is_dead() -> bool:
        storm.keep_running()
        return bool(storm.channel.queue_declare("dead", passive=True).method.message_count)

    wait_until(killer_is_dead, interval_s=0.1, message=story)
    storm.history.recovery()

    def settled() -> bool:
        storm.keep_running()  # the broker gives it up when the last process has died
        return len(storm.handled()) >= innocents - 1

    wait_until(settled, interval_s=0.1, message=story)

    dead = storm.dead()
    print(f"concurrency {concurrency}, kills {storm.kills}, dead {dict(dead)}")  # noqa: T201
    assert storm.judge(dead) == {}
    assert dead == {KILLER: 1}
    assert storm.handled() == set(range(innocents)) - {KILLER}


@pytest.mark.parametrize("storm", [False], ids=["classic"], indirect=True)
@pytest.mark.parametrize(("concurrency", "innocents"), [(1, 50), (10, 50), (50, 200)])
def test_on_a_classic_queue_the_others_are_handled_while_the_killer_kills(
    storm: Storm, concurrency: int, innocents: int
) -> None:
    storm.options = [str(concurrency), "redelivered", "no"]
    storm.publish(innocents)

    def settled() -> bool:
        storm.keep_running()
        return len(storm.handled()) == innocents - 1

    wait_until(settled, interval_s=0.1, message=lambda: f"{len(storm.handled())} handled")

    print(f"concurrency {concurrency}, kills {storm.kills}")  # noqa: T201
    storm.history.recovery()  # the killer has not ended: the others are settled meanwhile
    dead = storm.dead()
    assert storm.judge(dead) == {}
    assert dead == {}
