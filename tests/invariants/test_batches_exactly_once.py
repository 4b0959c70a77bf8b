"""Batches, groups and workers that die inside them: every effect happens once, and poison harms no other message.

    stream ─▶ two workers with batches and groups ─▶ effects + inbox          poison ─▶ dead letters, alone

Workers are killed with SIGKILL at seven named points of a batch; some messages are in the stream twice, and some fail
always. Then the books are compared, and the history is judged. The same storm with planted bugs has to come out wrong.

``CONQUIET_TORTURE=1`` makes it 20,000 messages and 300 kills.
"""

import contextlib
import itertools
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
import redis
from sqlalchemy import Engine, create_engine, text
from tests.invariants.histories import History, Row, database_facts, redis_facts, seed_or

from conquiet.processor.keys import keys_of
from conquiet.transactional import create_tables

WORKER = Path(__file__).with_name("batch_worker.py")
TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
POINTS = ("before-inbox", "after-inbox", "mid-handler", "before-commit", "after-commit", "after-ack")
BATCH = 200 if TORTURE else 16

pytestmark = pytest.mark.timeout(900 if TORTURE else 260)


def is_poison(number: int) -> bool:
    return number % 61 == 30


@dataclass
class Books:
    """The content of the servers after the storm."""

    effects: Counter[str]
    dead: Counter[str]
    charged: list[str]


@dataclass
class Storm:
    """One stream and its workers."""

    redis_url: str
    db_url: str
    stream: str
    bug: str = ""
    history: History | None = None
    engine: Engine = field(init=False)
    client: Any = field(init=False)
    heard: "queue.Queue[dict[str, Any]]" = field(default_factory=queue.Queue)
    living: dict[int, str] = field(default_factory=dict)
    kills: int = 0
    count: int = 0
    armed: dict[str, str] = field(default_factory=dict)
    reached: Counter[str] = field(default_factory=Counter)
    worker: Path = WORKER
    batch: int = BATCH

    def __enter__(self) -> Self:
        self.engine = create_engine(self.db_url, pool_pre_ping=True)
        create_tables(self.engine)
        with self.engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE effects ({self.columns()})"))
        self.client = redis.Redis.from_url(self.redis_url)
        return self

    def ended_by_itself(self, process: int, status: int) -> bool:
        """Return whether a worker may have ended so, without having been killed."""
        return False

    def columns(self) -> str:
        """Return the columns of the table that the effects are in."""
        return "message_id VARCHAR(20) NOT NULL, worker VARCHAR(20) NOT NULL"

    def begin(self, history: History | None = None) -> None:
        """Start the process that forks workers."""
        self.history = history
        settings = {
            "redis_url": self.redis_url,
            "db_url": self.db_url,
            "stream": self.stream,
            "bug": self.bug,
            "batch": self.batch,
            "history": "" if self.history is None else str(self.history.folder),
        }
        self.zygote = subprocess.Popen(
            [sys.executable, str(self.worker), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def end(self) -> dict[str, Any]:
        """End all processes. Returns what they have left behind."""
        deadline = time.monotonic() + 30
        self._hear()
        while self._starting and time.monotonic() < deadline:  # a worker that is not known yet would live on
            time.sleep(0.01)
            self._hear()
        for pid in self.living:
            with contextlib.suppress(ProcessLookupError):  # it has just come to its point
                os.kill(pid, signal.SIGKILL)
        self.zygote.kill()
        self.zygote.wait()
        self.living.clear()
        return {} if self.history is None else self.history.leaks(self.engine)

    def __exit__(self, *_: object) -> None:
        if self.zygote.poll() is None:
            self.end()
        self._listener.join(30)
        assert self.zygote.stdin is not None
        assert self.zygote.stdout is not None
        self.zygote.stdin.close()
        self.zygote.stdout.close()
        self.engine.dispose()
        self.client.close()

    def fill(self, count: int) -> None:
        if not self.count:
            self.client.xgroup_create(self.stream, "processor", "0", mkstream=True)
        with self.client.pipeline(transaction=False) as pipe:
            for number in range(self.count, self.count + count):
                data = {"v": 1, "event": "paid", "id": f"m{number}", "data": {"poison": is_poison(number)}}
                expected = "dead" if is_poison(number) else "effect"
                copies = 2 if number % 50 == 7 and not is_poison(number) else 1  # some are there twice
                self._record("enqueue", id=f"m{number}", expect=expected, copies=copies)
                for _ in range(copies):
                    pipe.xadd(self.stream, {"data": json.dumps(data)})
            pipe.execute()
        self.count += count

    def start(self, name: str, mode: str, point: str = "", nth: int = 1) -> None:
        assert self.zygote.stdin is not None
        self.zygote.stdin.write(json.dumps({"name": name, "mode": mode, "point": point, "nth": nth}) + "\n")
        self.zygote.stdin.flush()

    def run(
        self, kills: int, *, deadline_s: float, at: Sequence[str] = POINTS, modes: Sequence[str] = ("batch", "group")
    ) -> None:
        """Keep two workers alive, each with a point to die at until there were enough kills, until all is settled."""
        rng = random.Random(seed_or(7))
        chosen = itertools.cycle(modes)
        each = kills // len(at)

        def is_enough() -> bool:
            return self.kills >= kills and all(self.reached[point] >= each for point in at)

        deadline = time.monotonic() + deadline_s
        wanted = {"w1", "w2"}
        while time.monotonic() < deadline:
            self._hear()
            for name in wanted - set(self.living.values()) - self._starting:
                self._starting.add(name)
                # The point at which fewest have died, including workers that approach it.
                armed = self.reached + Counter(self.armed.values())
                point = min(at, key=lambda one: armed[one])
                point = point if armed[point] < each else ""
                self.armed[name] = point
                if point:
                    self._record("armed", point=point)
                self.start(
                    name, next(chosen), point, rng.randint(1, 2) if point != "mid-handler" else rng.randint(1, 20)
                )
            left = self._left()
            if is_enough() and not self._is_recovering:
                self._is_recovering = True
                if self.history is not None:
                    self.history.recovery()
            if is_enough() and left == 0:
                self._record("drained")
                return
            if not is_enough() and left < BATCH:
                self.fill(BATCH)  # until enough of them have died
            time.sleep(0.02)
        seen = f"{self.kills} kills, {dict(self.reached)}, {self.armed}, {self.living}, starting {self._starting}"
        pending = self.client.xpending_range(self.stream, "processor", "-", "+", 5)
        raise AssertionError(f"after {deadline_s} s {self._left()} messages are left, {seen}, {pending}")

    _starting: set[str] = field(default_factory=set)
    _is_recovering: bool = False

    def _record(self, op: str, **fields: Any) -> None:
        if self.history is not None:
            self.history.record(op, **fields)

    def books(self) -> Books:
        with self.engine.connect() as connection:
            effects = Counter(connection.execute(text("SELECT message_id FROM effects")).scalars())
        dead = Counter(json.loads(fields[b"data"])["id"] for _, fields in self.client.xrange(keys_of(self.stream).dead))
        entries = [json.loads(fields[b"data"]) for _, fields in self.client.xrange(self.stream)]
        return Books(effects, dead, [entry["id"] for entry in entries if entry.get("attempt", 1) > 1])

    def _left(self) -> int:
        (group,) = self.client.xinfo_groups(self.stream)
        return int(group["lag"] or 0) + int(group["pending"])

    def _listen(self) -> None:
        assert self.zygote.stdout is not None
        for line in self.zygote.stdout:
            self.heard.put(json.loads(line))

    def _hear(self) -> None:
        while not self.heard.empty():
            fact = self.heard.get()
            if "ended" in fact:
                point = self.armed.pop(fact["name"])
                if not self.ended_by_itself(fact["ended"], fact["status"]):
                    assert fact["status"] == -signal.SIGKILL, fact
                    self.kills += 1
                    self.reached[point] += 1
                self.living.pop(fact["ended"], None)
                self._ended.add(fact["ended"])
            elif fact["pid"] not in self._ended:  # else the report of its end came first
                self.living[fact["pid"]] = fact["name"]
            self._starting.discard(fact["name"]) if "pid" in fact else None

    _ended: set[int] = field(default_factory=set)


@pytest.fixture(params=["mariadb", "postgres"] if TORTURE else ["mariadb"])
def storm_url(request: pytest.FixtureRequest, db_url: str) -> str:
    return db_url if request.param == "mariadb" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def stream(key_prefix: str) -> str:
    return f"{key_prefix}orders"


def history_of(storm: Storm, new_history: Callable[..., History], *, kills: int) -> History:
    database = database_facts(storm.engine)
    return new_history(
        f"batches over {database['name']}",
        Row("Processor, batches and groups, inbox", str(database["name"]), "one Redis, 2 processes"),
        seed=seed_or(7),
        promise={"effects": "once", "commits": True},
        servers=[redis_facts(storm.client), database],
        claim_idle_s=1.0,
        recovery_s=450.0,  # on a machine with other work
        points=dict.fromkeys(POINTS, kills // len(POINTS)),
    )


def test_kills_inside_batches_lose_nothing_and_repeat_nothing(
    redis_url: str, storm_url: str, stream: str, new_history: Callable[..., History]
) -> None:
    count, kills = (20_000, 300) if TORTURE else (100, 6)
    with Storm(redis_url, storm_url, stream) as storm:
        history = history_of(storm, new_history, kills=kills)
        storm.begin(history)
        storm.fill(count)
        storm.run(kills, deadline_s=800 if TORTURE else 220)
        books = storm.books()
        leaked = storm.end()
    history.record("state", effects=sorted(books.effects.elements()))
    history.record("state", dead=sorted(books.dead.elements()), left={"pending": 0}, leaked=leaked)
    assert history.judge()["examples"] == {}

    numbers = range(storm.count)
    print(f"{storm.count} messages, {storm.kills} kills, {sum(map(is_poison, numbers))} poison")  # noqa: T201
    lost = [f"m{n}" for n in numbers if not is_poison(n) and not books.effects[f"m{n}"]]
    twice = {one: times for one, times in books.effects.items() if times > 1}
    guilty = {f"m{n}" for n in numbers if is_poison(n)}
    assert (lost, twice) == ([], {})
    assert guilty.isdisjoint(books.effects)
    assert set(books.dead) == guilty  # and no neighbour
    assert books.charged == []


@pytest.mark.parametrize(
    ("bug", "kills", "at", "mode"),
    [
        ("no-inbox", 2, "after-commit", "batch"),
        ("ack-before-commit", 2, "before-commit", "batch"),
        ("charge-neighbours", 0, "", "batch"),
        ("keep-savepoint", 0, "", "group"),
    ],
)
def test_a_planted_bug_shows_in_the_books(
    redis_url: str, db_url: str, stream: str, bug: str, kills: int, at: str, mode: str
) -> None:
    with Storm(redis_url, db_url, stream, bug=bug) as storm:
        storm.begin()
        storm.fill(64)
        storm.run(kills, deadline_s=100, at=[at], modes=[mode])
        books = storm.books()

    is_right = (
        all(books.effects[f"m{n}"] == (not is_poison(n)) for n in range(storm.count))
        and set(books.dead) == {f"m{n}" for n in range(storm.count) if is_poison(n)}
        and not books.charged
    )
    assert not is_right
