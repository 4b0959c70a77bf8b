"""Money is moved by messages, and workers die. Every message has its effect exactly once.

    orders (stream) ─▶ transfer ─▶ accounts + inbox + outbox ─▶ relay ─▶ ledger (stream) ─▶ book ─▶ ledger + inbox

Workers are killed with SIGKILL at ten named points, stopped past the claim threshold so that two run one
message, deprived of the replies to their commits, and left without their servers for a while. Then the books
are compared. The same storm without the inbox, and with three planted bugs, has to come out wrong: a test
that cannot see a duplicate proves nothing.

``CONQUIET_TORTURE=1`` makes it 20,000 messages and 1,000 kills.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import redis
from sqlalchemy import create_engine, text
from tests.invariants.histories import History, Row, database_facts, redis_facts, seed_or
from tests.invariants.lost_replies import LostReplies

from conquiet.config import QueueConfig
from conquiet.queue import RedisStreamsQueue
from conquiet.testing import FaultProxy, MySQLServer, PostgresServer, RedisServer
from conquiet.transactional import create_tables

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

WORKER = Path(__file__).with_name("exactly_once_worker.py")
TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"

SEED = seed_or(20261115)
STALE_S = 0.3
"""The workers' claim threshold. They renew no lease."""
ACCOUNTS, OPENING = 12, 1_000
CONSUMER_POINTS = ("read", "before-inbox", "after-inbox", "mid-handler", "before-commit", "after-commit", "after-ack")
RELAY_POINTS = ("before-publish", "after-publish", "after-delete")
POINTS = (*CONSUMER_POINTS, *RELAY_POINTS)
SIZE = (100, 20_000) if TORTURE else (2, 200)
"""How often each fault strikes, and the number of orders."""

TABLES = """
CREATE TABLE account (id INT PRIMARY KEY, balance BIGINT NOT NULL) ENGINE=InnoDB;
CREATE TABLE ledger (id INT PRIMARY KEY, total BIGINT NOT NULL) ENGINE=InnoDB;
CREATE TABLE transfer_effect (id BIGINT AUTO_INCREMENT PRIMARY KEY, transfer INT NOT NULL) ENGINE=InnoDB;
CREATE TABLE ledger_effect (id BIGINT AUTO_INCREMENT PRIMARY KEY, transfer INT NOT NULL) ENGINE=InnoDB;
INSERT INTO ledger VALUES (1, 0);
"""


@dataclass
class Faults:
    """The parts of the storm."""

    kills: dict[str, int]
    stops: int = 0
    lost_commits: int = 0


@dataclass
class Crew:
    """The workers, seen from the test."""

    zygote: "subprocess.Popen[str]"
    heard: "queue.Queue[dict[str, Any]]" = field(default_factory=queue.Queue)
    errors: Counter[str] = field(default_factory=Counter)

    def start(self, role: str, name: str, halt: str | None = None, nth: int = 0) -> None:
        assert self.zygote.stdin is not None
        self.zygote.stdin.write(json.dumps({"role": role, "name": name, "halt": halt, "nth": nth}) + "\n")
        self.zygote.stdin.flush()

    def listen(self) -> None:
        assert self.zygote.stdout is not None
        for line in self.zygote.stdout:
            self.heard.put(json.loads(line))

    def next(self, timeout_s: float) -> dict[str, Any] | None:
        with contextlib.suppress(queue.Empty):
            fact = self.heard.get(timeout=timeout_s)
            assert "crash" not in fact, fact["crash"]
            if "error" in fact:
                self.errors[fact["error"]] += 1
            return fact
        return None


class Chaos:
    """The workers, the point at which each halts, and the fault there."""

    ROLES: ClassVar = {"t1": "transfer", "t2": "transfer", "b1": "book", "r1": "relay", "r2": "relay"}

    def __init__(self, crew: Crew, faults: Faults, rng: random.Random, done: Counter[str], history: History) -> None:
        self._crew, self._stops, self._rng, self._done, self._history = crew, faults.stops, rng, done, history
        self.missing = Counter(faults.kills)
        self._total = sum(self.missing.values())
        self._names: dict[int, str] = {}
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._turns = {
            name: itertools.cycle(RELAY_POINTS if role == "relay" else CONSUMER_POINTS)
            for name, role in self.ROLES.items()
        }
        for name in self.ROLES:
            self._arm(name)

    @property
    def is_over(self) -> bool:
        return max(self.missing.values(), default=0) <= 0 and not self._later

    @property
    def progress(self) -> float:
        return 1 - sum(max(0, left) for left in self.missing.values()) / max(1, self._total)

    def step(self) -> bool:
        """Receive one report and reply. Return whether a worker had reached its point."""
        fact = self._crew.next(0.05)
        now = time.monotonic()
        for entry in [entry for entry in self._later if entry[0] <= now]:
            self._later.remove(entry)
            entry[1]()
        if fact is not None and "name" in fact:
            self._names[fact["pid"]] = fact["name"]
        if fact is None or "at" not in fact:
            return False
        self._reached(fact["pid"], fact["at"], now)
        return True

    def _reached(self, pid: int, point: str, now: float) -> None:
        self.missing[point] -= 1
        if self._done["stopped"] < self._stops and point in {"read", "before-inbox", "mid-handler"}:
            # Frozen for longer than the claim threshold: another worker runs the message meanwhile.
            self._history.stop(pid, point)
            os.kill(pid, signal.SIGSTOP)
            os.kill(pid, signal.SIGUSR1)
            self._done["stopped"] += 1
            self._later.append((now + 0.9, lambda: self._resume(pid, point)))
        else:
            self._kill(pid, point)

    def _resume(self, pid: int, point: str) -> None:
        self._history.resume(pid)
        os.kill(pid, signal.SIGCONT)
        self._later.append((time.monotonic() + 0.3, lambda: self._kill(pid, point)))

    def _kill(self, pid: int, point: str) -> None:
        self._history.kill(pid, point)
        os.kill(pid, signal.SIGKILL)
        self._done[f"killed {point}"] += 1
        self._arm(self._names[pid])

    def _arm(self, name: str) -> None:
        turns = itertools.islice(self._turns[name], len(POINTS))
        point = next((point for point in turns if self.missing[point] > 0), None)
        is_relay = self.ROLES[name] == "relay"
        if point is not None:
            self._history.record("armed", point=point)
        self._crew.start(self.ROLES[name], name, point, self._rng.randint(1, 3 if is_relay else 6))


class Storm:
    """One world: servers, a crew, the orders, and what has to be true in the end."""

    def __init__(
        self,
        db_url: str,
        redis_url: str,
        proxy: FaultProxy,
        new_history: Callable[..., History],
        *,
        prefix: str,
        bug: str,
        orders: int,
        points: dict[str, int],
    ) -> None:
        self.proxy = proxy
        self.redis_url = redis_url
        self.streams = {"orders": f"{prefix}orders", "ledger": f"{prefix}ledger"}
        self.engine: Engine = create_engine(db_url, pool_pre_ping=True)
        self.rng = random.Random(SEED)
        self.orders = [self._an_order(number) for number in range(orders)]
        self.done: Counter[str] = Counter()
        self._make_tables()
        with redis.Redis.from_url(redis_url) as client:
            facts = [redis_facts(client), database_facts(self.engine)]
            database = facts[1]["name"]
            self.history = new_history(
                f"money over {database}",
                Row("QueueConsumer, inbox, outbox, relay", database, "one Redis with AOF"),
                seed=SEED,
                promise={
                    "effects": "once",
                    "stages": ["transfer", "book"],
                    "order": {"arrival": "transfer"},
                    "commits": True,
                },
                servers=facts,
                recovery_s=450.0,  # the relays' and the locks' own waits, on a machine with other work
                claim_idle_s=STALE_S,
                points=points,
            )
            for order in self.orders:
                self.history.record("enqueue", id=str(order["transfer"]), key=str(order["from"]))
            for name in self.streams.values():
                with RedisStreamsQueue(client, QueueConfig(name, "g", "test")) as stream:
                    for start in range(0, orders if name == self.streams["orders"] else 0, 5_000):
                        stream.enqueue_many(self.orders[start : start + 5_000])
        self.settings = {
            "redis": redis_url, "db": proxy.url_for(db_url), "bug": bug, "history": str(self.history.folder),
        } | self.streams  # fmt: skip

    def _an_order(self, number: int) -> dict[str, int]:
        source, target = self.rng.sample(range(ACCOUNTS), 2)
        return {"transfer": number, "from": source, "to": target, "amount": self.rng.randint(1, 50)}

    def _make_tables(self) -> None:
        create_tables(self.engine)
        tables = TABLES
        if self.engine.dialect.name == "postgresql":
            tables = TABLES.replace(" ENGINE=InnoDB", "").replace("AUTO_INCREMENT", "GENERATED BY DEFAULT AS IDENTITY")
        with self.engine.begin() as connection:
            for statement in filter(None, map(str.strip, tables.split(";"))):
                connection.execute(text(statement))
            for number in range(ACCOUNTS):
                connection.execute(text(f"INSERT INTO account VALUES ({number}, {OPENING})"))

    # -------------------------------------------------------------- the storm
    def rage(self, faults: Faults, *, timeout_s: float, restart: Sequence[Callable[[], object]] = ()) -> None:
        """Run the crew, cause the faults, and return when no message is in flight any more."""
        with self._crew() as crew:
            for role in ("claim-transfer", "claim-book"):
                crew.start(role, role)
            try:
                self._break_things(crew, faults, time.monotonic() + timeout_s, list(restart))
            finally:
                self.done.update({f"error {name}": count for name, count in crew.errors.items()})

    @contextlib.contextmanager
    def _crew(self) -> Iterator[Crew]:
        argv = [sys.executable, str(WORKER), json.dumps(self.settings)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as zygote:
            crew = Crew(zygote)
            ear = threading.Thread(target=crew.listen, daemon=True)
            ear.start()
            try:
                yield crew
            finally:
                assert zygote.stdin is not None
                zygote.stdin.close()  # the zygote ends its children, then itself
                zygote.wait(60)
                ear.join(60)

    def _break_things(self, crew: Crew, faults: Faults, deadline: float, restart: list[Callable[[], object]]) -> None:
        chaos = Chaos(crew, faults, self.rng, self.done, self.history)
        recovering = False
        replies = LostReplies(self.proxy, self.history, faults.lost_commits)
        while not (recovering and self._is_quiet()):
            if chaos.is_over and not recovering:
                recovering = True
                replies.end()
                self.history.recovery()
            replies.note()
            assert time.monotonic() < deadline, f"not done in time: {chaos.missing}, {self.done}, {self._where()}"
            if not chaos.step():
                continue
            replies.arm()
            if restart and chaos.progress * 3 >= self.done["restarted"] + 1:
                with self.history.outage("server killed and restarted", charges=True):
                    restart.pop(0)()
                self.done["restarted"] += 1
        self.history.record("drained")

    def _is_quiet(self) -> bool:
        return self._where() == {"orders": 0, "ledger": 0, "outbox": 0}

    def _where(self) -> dict[str, int]:
        """Messages in flight. Counted in the direction in which they move, so that none is missed."""
        with redis.Redis.from_url(self.redis_url) as client:
            orders = _unfinished(client, self.streams["orders"])
            outbox = int(self._scalar("SELECT COUNT(*) FROM conquiet_outbox"))
            return {"orders": orders, "outbox": outbox, "ledger": _unfinished(client, self.streams["ledger"])}

    def _scalar(self, statement: str) -> Any:
        with self.engine.connect() as connection:
            return connection.execute(text(statement)).scalar()

    # -------------------------------------------------------------- the books
    def problems(self) -> list[str]:
        """Everything that is not as if each message had been handled once, by one worker, in peace."""
        expected = dict.fromkeys(range(ACCOUNTS), OPENING)
        for order in self.orders:
            expected[order["from"]] -= order["amount"]
            expected[order["to"]] += order["amount"]
        found: list[str] = []
        with self.engine.connect() as connection:
            balances = {int(row[0]): int(row[1]) for row in connection.execute(text("SELECT * FROM account"))}
            applied = [
                int(row[0]) for row in connection.execute(text("SELECT transfer FROM transfer_effect ORDER BY id"))
            ]
            booked = [int(row[0]) for row in connection.execute(text("SELECT transfer FROM ledger_effect"))]
            seen = Counter(
                str(row[0].decode()) for row in connection.execute(text("SELECT source FROM conquiet_inbox"))
            )
        self.history.record("state", effects=applied, of="transfer")
        self.history.record("state", effects=booked, of="book")
        self.history.record("state", left=self._where(), leaked=self.history.leaks(self.engine))
        if sum(balances.values()) != ACCOUNTS * OPENING:
            found.append("money was made or lost")
        if balances != expected:
            found.append("a balance is wrong")
        found += _compare("transfers", applied, len(self.orders))
        found += _compare("ledger entries", booked, len(self.orders))
        if self._scalar("SELECT total FROM ledger") != sum(order["amount"] for order in self.orders):
            found.append("the ledger's total is wrong")
        if seen != dict.fromkeys(self.streams.values(), len(self.orders)):
            found.append(f"inbox rows: {dict(seen)}")
        return found + self._disorder(applied)

    def _disorder(self, applied: list[int]) -> list[str]:
        """Per key, the ledger's messages arrived in the order in which their transactions were committed."""
        rank = {transfer: place for place, transfer in enumerate(applied)}
        with redis.Redis.from_url(self.redis_url) as client:
            arrived = [json.loads(fields[b"data"]) for _, fields in client.xrange(self.streams["ledger"])]
        self.history.record("state", effects=[message["transfer"] for message in arrived], of="arrival")
        last: dict[int, int] = {}
        met: set[int] = set()
        for message in arrived:
            if message["transfer"] in met:
                self.done["published twice"] += 1
                continue
            met.add(message["transfer"])
            if rank.get(message["transfer"], 0) < last.get(message["from"], -1):
                return [f"account {message['from']}: out of order"]
            last[message["from"]] = rank.get(message["transfer"], 0)
        return []


def _unfinished(client: Any, stream: str) -> int:
    """Entries that are pending or not read yet. Not by ``lag``: a restarted server may not know it."""
    (group,) = client.xinfo_groups(stream)
    unread = client.xrange(stream, f"({group['last-delivered-id'].decode()}", "+")
    return int(group["pending"]) + len(unread)


def _compare(what: str, numbers: list[int], wanted: int) -> list[str]:
    count = Counter(numbers)
    twice = sum(1 for times in count.values() if times > 1)
    lost = wanted - len(count)
    return [f"{what}: {twice} twice"] * bool(twice) + [f"{what}: {lost} lost"] * bool(lost)


@pytest.fixture
def make_storm(
    fault_proxy: Callable[[str], FaultProxy], key_prefix: str, new_history: Callable[..., History]
) -> Iterator[Callable[..., Storm]]:
    made: list[Storm] = []

    def make(db_url: str, redis_url: str, *, bug: str = "", orders: int, points: dict[str, int]) -> Storm:
        proxy = fault_proxy(db_url)
        storm = Storm(db_url, redis_url, proxy, new_history, prefix=key_prefix, bug=bug, orders=orders, points=points)
        made.append(storm)
        return storm

    yield make
    for one in made:
        one.engine.dispose()


@pytest.mark.spec("RS-002.11")
def test_every_message_has_its_effect_exactly_once_whatever_dies(
    make_storm: Callable[..., Storm],
    private_redis: Callable[..., RedisServer],
    private_mysql: Callable[..., MySQLServer],
) -> None:
    each, orders = SIZE
    rage_and_compare(make_storm, private_mysql(), private_redis(aof=True), each=each, orders=orders)


@pytest.mark.spec("RS-002.11")
def test_every_message_has_its_effect_exactly_once_on_postgresql(
    make_storm: Callable[..., Storm],
    private_redis: Callable[..., RedisServer],
    private_postgres: Callable[..., PostgresServer],
) -> None:
    """A lost reply to COMMIT is resolved here: no worker ever has to leave a message for that reason."""
    each, orders = SIZE
    world = rage_and_compare(make_storm, private_postgres(), private_redis(aof=True), each=each, orders=orders)

    assert world.done["error CommitUnknownError"] == 0


def rage_and_compare(
    make_storm: Callable[..., Storm],
    database: MySQLServer | PostgresServer,
    broker: RedisServer,
    *,
    each: int,
    orders: int,
) -> Storm:
    """Let every fault strike ``each`` times, restart both servers, and compare the books."""
    faults = Faults(dict.fromkeys(POINTS, each), stops=each // 2, lost_commits=each * 2)
    world = make_storm(database.url, broker.url, orders=orders, points=faults.kills)
    started = time.monotonic()

    restarts = [broker.kill, broker.restart], [database.kill, database.restart]
    world.rage(
        faults,
        timeout_s=3_000 if TORTURE else 450,
        restart=[lambda steps=steps: [step() for step in steps] for steps in restarts],  # type: ignore[misc]
    )

    problems = world.problems()
    took_s = time.monotonic() - started
    print(f"\n{len(world.orders)} messages in {took_s:.0f} s: {dict(sorted(world.done.items()))}")  # noqa: T201 - the fault ledger
    assert problems == []
    assert world.history.judge()["examples"] == {}
    for point in POINTS:
        assert world.done[f"killed {point}"] >= each
    assert world.done["stopped"] == faults.stops
    # Applied faults, not armed ones: the last ones may have found no COMMIT.
    assert world.proxy.counters.faults >= faults.lost_commits // 2
    assert world.done["restarted"] == 2
    return world


EACH_BUG = [
    ("no-inbox", "after-commit", "twice"),
    ("inbox-after-handler", "after-commit", "twice"),
    ("ack-before-commit", "before-commit", "lost"),
    ("relay-deletes-first", "before-publish", "lost"),
    ("", "after-commit", "nothing"),
]
BUGS = pytest.mark.parametrize(("bug", "point", "seen"), EACH_BUG)
ENOUGH_ORDERS = 160
"""A relay is killed at its third batch at the latest, and its batches grow: 5, 10, 20. Four kills take up to 155."""


@BUGS
def test_without_the_inbox_or_with_a_planted_bug_effects_differ(
    make_storm: Callable[..., Storm], db_url: str, redis_url: str, bug: str, point: str, seen: str
) -> None:
    """The proof above is worth something only if it can fail. Without a bug, the same kills do no harm."""
    expect(make_storm(db_url, redis_url, bug=bug, orders=ENOUGH_ORDERS, points={point: 4}), point, seen)


@(BUGS if TORTURE else pytest.mark.parametrize(("bug", "point", "seen"), EACH_BUG[::4]))  # one bug, and none
def test_planted_bugs_are_seen_on_postgresql_too(
    make_storm: Callable[..., Storm], postgres_url: str, redis_url: str, bug: str, point: str, seen: str
) -> None:
    expect(make_storm(postgres_url, redis_url, bug=bug, orders=ENOUGH_ORDERS, points={point: 4}), point, seen)


def expect(world: Storm, point: str, seen: str) -> None:
    world.rage(Faults({point: 4}), timeout_s=300)

    problems = world.problems()
    assert any(seen in problem for problem in problems) or (seen == "nothing" and not problems), problems
    # The checker reads the history alone, and comes to the same judgement.
    found = world.history.judge(publish=False)["anomalies"]
    assert any(seen in name for name in found) or (seen == "nothing" and not found), found
    assert ("acknowledged before commit" in found) == (world.settings["bug"] == "ack-before-commit"), found
