"""kill -9 at every step of ``run()``: each message's effect is there, and a second one only where it is explained.

``CONQUIET_TORTURE=1`` makes it 100 kills instead of 40.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import redis
from sqlalchemy import Engine, create_engine, text
from tests.invariants.histories import TORTURE, History, Row, database_facts, redis_facts

from conquiet import QueueConfig, RedisStreamsQueue

WORKER = Path(__file__).with_name("killed_worker.py")
STEPS = ("read", "handler", "commit", "ack", "acked")
ROUNDS = 20 if TORTURE else 8
PROCESSES = 4


@pytest.fixture
def engine(db_url: str) -> Iterator[Engine]:
    made = create_engine(db_url)
    with made.begin() as conn:
        conn.execute(text("CREATE TABLE effects (message_id VARCHAR(40) NOT NULL)"))
    yield made
    made.dispose()


@pytest.mark.spec("QC-001.5", "QC-002.1", "RS-002.1", "RS-002.8", "RS-001.2", "QC-001.3", "QC-011.3", "QC-013.1")
def test_every_effect_is_there_whatever_step_a_worker_was_killed_at(
    redis_url: str, db_url: str, engine: Engine, key_prefix: str, new_history: Callable[..., History]
) -> None:
    stream = f"{key_prefix}orders"
    kills = [(step, number) for number in range(ROUNDS) for step in STEPS]
    client: Any = redis.Redis.from_url(redis_url)
    with RedisStreamsQueue(client, QueueConfig(stream, "billing", "producer")) as queue:
        ids = queue.enqueue_many([{"n": n} for n in range(8 * len(kills))])
    facts = [redis_facts(client), database_facts(engine)]
    database = facts[1]["name"]
    history = new_history(
        f"workers of {database} killed at every step of run",
        Row("QueueConsumer without inbox", database, f"one Redis, {PROCESSES} processes"),
        seed=0,
        promise={"effects": "at least once", "commits": True},
        servers=facts,
        points=dict.fromkeys(STEPS, ROUNDS),
    )
    for one in ids:
        history.record("enqueue", id=one)

    with ExitStack() as stack, ThreadPoolExecutor(PROCESSES) as pool:
        idle: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()
        for _ in range(PROCESSES):
            argv = [sys.executable, str(WORKER), redis_url, db_url, stream, str(history.folder)]
            nursery = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            idle.put(stack.enter_context(nursery))
            stack.callback(os.killpg, nursery.pid, signal.SIGKILL)  # even if the test fails while a worker waits

        def ask(nursery: subprocess.Popen[str], step: str, number: int) -> list[str]:
            assert nursery.stdin is not None
            assert nursery.stdout is not None
            nursery.stdin.write(f"worker-{step}-{number} {step} {1 + number % 4}\n")
            nursery.stdin.flush()
            return nursery.stdout.readline().split()

        def run_and_kill(kill: tuple[str, int]) -> tuple[str, str]:
            nursery = idle.get()
            history.record("armed", point=kill[0])
            step, message_id, pid = ask(nursery, *kill)
            history.kill(int(pid), step)
            os.kill(int(pid), signal.SIGKILL)
            idle.put(nursery)
            return message_id, step

        killed = dict(pool.map(run_and_kill, kills))
        history.recovery()
        assert ask(idle.get(), "none", 0) == ["done"]
        history.record("drained")

    assert Counter(killed.values()) == dict.fromkeys(STEPS, ROUNDS)
    with engine.connect() as conn:
        effects = Counter(conn.execute(text("SELECT message_id FROM effects")).scalars())
    assert set(effects) == set(ids), "a message was lost"
    # Committed and not acknowledged: this message is delivered again. Every other step leaves exactly one effect.
    twice = {message_id for message_id, step in killed.items() if step == "ack"}
    assert {message_id for message_id, count in effects.items() if count != 1} == twice
    assert {effects[message_id] for message_id in twice} == {2}
    assert client.xpending(stream, "billing")["pending"] == 0
    client.close()
    history.record("state", effects=list(effects.elements()), left={"pending": 0}, leaked=history.leaks())
    assert history.judge()["examples"] == {}
