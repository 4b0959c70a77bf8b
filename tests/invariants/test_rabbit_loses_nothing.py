"""Many processes, many faults: no message is lost, and the dead letters are exactly the messages that were refused.

The consumers refuse numbers divisible by ten; all others succeed. After all kills, stops and cuts each good number was
handled at least once, each refused number is in the dead-letter queue exactly once, and the queue is empty.
``CONQUIET_TORTURE=1`` runs 250 faults over 25,000 messages on each kind of queue instead of 20 over 2,000.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pika
import pytest
from tests.invariants.histories import History, Row, rabbit_facts, seed_or

from conquiet.testing import CloseMode, FaultProxy, wait_until
from conquiet.testing.rabbitmq import RabbitMQServer

SEED = seed_or(20261115)
TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
MESSAGES, FAULTS = (25_000, 250) if TORTURE else (2_000, 20)
BACKLOG = 300

WORKER = """
import asyncio, logging, os, sys, time
from conquiet.core.backoff import Backoff
from conquiet.rabbit import SchemaRegistry, current_delivery, run_process
from conquiet.rabbit.connection import Link
from tests.invariants import wire
from tests.invariants.recorder import Recorder
url, queue, path, history = sys.argv[1:]
record = Recorder(history)
record.watch(4.0)  # without heartbeats for 5 to 10 s the broker ends a connection
open_link = Link.open
async def open_and_note(*arguments, **options):
    opened = round(time.monotonic(), 6)
    link = await open_link(*arguments, **options)
    link.opened = opened
    link.lost.add_done_callback(lambda _: record("lost", link=opened))
    return link
Link.open = open_and_note
wire.note_queue_acks(record)
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
logging.disable(logging.CRITICAL)
async def syncer(message):
    number = message["number"]
    record("deliver", id=number, link=current_delivery().session.link.opened)
    wire.delivered(number)
    await asyncio.sleep(0.002)
    if number % 10 == 0:
        record("release", id=number)
        return False
    os.write(log, b"%d\\n" % number)  # one write: whole lines, also when we are killed
    record("commit", id=number)
    return True
sys.exit(run_process(url, queue, syncer, concurrency=8, schemas=SchemaRegistry(built_in=False).register_default(),
                     reconnect=Backoff(base_s=0.05, cap_s=0.5), max_reconnects=10_000, connect_timeout_s=3.0,
                     heartbeat_s=5))
"""


class Storm:
    """A queue, its workers behind a proxy, and what the workers wrote down."""

    def __init__(
        self, url: str, api: Callable[..., Any], proxy: FaultProxy, folder: Path, history: History, *, quorum: bool
    ) -> None:
        self.history = history
        self.url, self.api, self.proxy, self.folder = url, api, proxy, folder
        self.dice = random.Random(SEED)
        self.published = 0
        self.workers: list[subprocess.Popen[bytes]] = []
        self.started = 0
        self.faults: Counter[str] = Counter()
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.channel.queue_declare("dead", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        if quorum:
            arguments["x-queue-type"] = "quorum"
        self.channel.queue_declare("work", durable=True, arguments=arguments)

    def publish(self, number: int) -> None:
        properties = pika.BasicProperties(delivery_mode=2)
        for n in range(self.published, self.published + number):
            self.history.record("enqueue", id=n, expect="effect" if n % 10 else "dead")
            self.channel.basic_publish("", "work", json.dumps({"number": n}).encode(), properties, mandatory=True)
        self.published += number

    def start_worker(self) -> None:
        self.started += 1
        path = self.folder / f"worker-{self.started}.log"
        url = self.proxy.url_for(self.url)
        argv = [sys.executable, "-c", WORKER, url, "work", str(path), str(self.history.folder)]
        self.workers.append(subprocess.Popen(argv))

    def handled(self) -> Counter[int]:
        return Counter(int(line) for path in self.folder.glob("*.log") for line in path.read_bytes().split())

    def depth(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def revive(self) -> None:
        """Start ended workers again: a fault on the first connection of a worker ends it, by design.

        It ends with 2 if it had not begun to consume, else with 1.
        """
        for worker in [worker for worker in self.workers if worker.poll() is not None]:
            assert worker.returncode in {1, 2}
            self.workers.remove(worker)
            self.start_worker()

    def settled(self) -> int:
        self.revive()
        return len(self.handled()) + self.depth("dead")

    def strike(self) -> None:
        """Cause one fault, then wait until the work continues."""
        kind = self.dice.choice(["kill -9", "SIGSTOP", "broker closes", "reset", "half close"])
        self.faults[kind] += 1
        before = self.settled()  # with all workers alive
        victim = self.dice.randrange(len(self.workers))
        worker = self.workers[victim]
        if kind == "kill -9":
            self.history.kill(worker.pid)
            worker.kill()
            worker.wait()
            del self.workers[victim]
            self.start_worker()
        elif kind == "SIGSTOP":
            self.history.stop(worker.pid)
            worker.send_signal(signal.SIGSTOP)
            others_go_on = before if len(self.workers) == 1 else before + 1
            wait_until(lambda: self.settled() >= min(others_go_on, self.published))
            self.history.resume(worker.pid)
            worker.send_signal(signal.SIGCONT)
        else:
            with self.history.outage(kind):
                if kind == "broker closes":
                    self._close_connections()
                else:
                    self.proxy.disconnect(CloseMode.RST if kind == "reset" else CloseMode.FIN)
        wait_until(
            lambda: self.settled() >= min(self.published, max(before + 1, self.published - BACKLOG)),
            interval_s=0.05,
            message=lambda: f"progress after {kind}: {self.settled()} of {self.published}",
        )

    @property
    def vhost(self) -> str:
        return quote(unquote(urlsplit(self.url).path[1:]), safe="")

    def is_complete(self) -> bool:
        """Return whether the broker lists both workers."""
        self.revive()
        return len(self.api("GET", f"/api/consumers/{self.vhost}")) == 2

    def _close_connections(self) -> None:
        for connection in self.api("GET", f"/api/vhosts/{self.vhost}/connections"):
            if "conquiet" in connection.get("client_properties", {}).get("connection_name", ""):
                # The statistics also list connections of workers that were killed a moment ago.
                self.api("DELETE", f"/api/connections/{quote(connection['name'], safe='')}", missing_ok=True)

    def take_dead(self) -> Counter[int]:
        dead: Counter[int] = Counter()
        while True:
            method, _, body = self.channel.basic_get("dead", auto_ack=True)
            if method is None:
                return dead
            dead[json.loads(body)["number"]] += 1

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
        self.connection.close()


@pytest.fixture
def storm(
    request: pytest.FixtureRequest,
    rabbitmq_server: RabbitMQServer,
    amqp_url: str,
    fault_proxy: Callable[[str], FaultProxy],
    tmp_path: Path,
    new_history: Callable[..., History],
) -> Iterator[Storm]:
    queue = "quorum" if request.param else "classic"
    history = new_history(
        f"RabbitMQ {queue} queue",
        Row("RabbitConsumer", "none", f"one RabbitMQ, {queue} queue"),
        seed=SEED,
        promise={"effects": "at least once", "commits": True},
        servers=[rabbit_facts(rabbitmq_server.api, queue=f"{queue}, durable")],
    )
    made = Storm(amqp_url, rabbitmq_server.api, fault_proxy(amqp_url), tmp_path, history, quorum=request.param)
    yield made
    made.close()


@pytest.mark.spec("MW-005.3", "MW-005.4", "MW-004.4", "MW-007.4")
@pytest.mark.parametrize("storm", [False, True], ids=["classic", "quorum"], indirect=True)
def test_under_faults_nothing_is_lost_and_only_the_refused_are_dead_lettered(storm: Storm) -> None:
    for _ in range(2):
        storm.start_worker()
    for _ in range(FAULTS):
        storm.publish(MESSAGES // FAULTS)
        storm.strike()
    storm.history.recovery()
    wait_until(lambda: storm.settled() == MESSAGES, message=lambda: f"{storm.settled()} settled")
    storm.history.record("drained")
    # A worker that was started a moment ago has no handler for SIGTERM yet.
    wait_until(storm.is_complete, interval_s=0.2, message="both workers are connected")
    for worker in storm.workers:
        worker.terminate()
    codes = [worker.wait(timeout=60) for worker in storm.workers]

    handled, dead = storm.handled(), storm.take_dead()
    lost = set(range(MESSAGES)) - set(handled) - set(dead)
    again = sum(handled.values()) - len(handled)
    print(f"messages {MESSAGES}, faults {dict(storm.faults)}, lost {len(lost)}, handled again {again}")  # noqa: T201
    assert lost == set()
    assert dead == Counter(range(0, MESSAGES, 10))
    assert storm.depth("work") == 0
    assert codes == [0, 0]
    storm.history.record("state", effects=sorted(handled.elements()))
    storm.history.record("state", dead=sorted(dead.elements()), left={"ready": storm.depth("work")})
    assert storm.history.judge()["examples"] == {}
