"""Three programs under one consumer name, as in containers with repeated host names and process ids.

One of them works, and the others are refused meanwhile. It is killed repeatedly, and the next program takes the name
and its pending entries. A second run of a message needs a kill as its cause. There is no delivery cap: the kills hit
the same messages repeatedly, as if these messages killed. ``CONQUIET_TORTURE=1`` makes it 60 kills and five programs.
"""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
from tests.invariants.histories import TORTURE, History, Row, redis_facts

from conquiet.testing import wait_until

KILLS, PROGRAMS = (60, 5) if TORTURE else (2, 3)
NAME = "consumer-web-1"
REFUSED = 3
STARTED, DONE = 0, 1

PROGRAM = """
import asyncio, logging, os, sys
import redis.asyncio
from conquiet.errors import QueueError
from conquiet.runtime import Consumer
from tests.invariants.recorder import Recorder
url, path, stream, name, history = sys.argv[1:]
record = Recorder(history)
log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
logging.disable(logging.CRITICAL)
async def handler(message, ctx):
    number = message.data["number"]
    record("deliver", id=number, n=message.delivery_count)
    os.write(log, b"%d %d 0\\n" % (os.getpid(), number))
    await asyncio.sleep(0.05)
    os.write(log, b"%d %d 1\\n" % (os.getpid(), number))
try:
    asyncio.run(Consumer(streams=[stream], redis=redis.asyncio.Redis.from_url(url), handler=handler, concurrency=10,
        consumer_id=name, claim_idle_ms=600_000, max_deliveries=None).start())
except QueueError as error:
    sys.exit(3 if "another live engine" in str(error) else 1)
"""


class Fleet:
    """The programs: each that ends is started again."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._running = [subprocess.Popen(command) for _ in range(PROGRAMS)]
        self.refused = 0

    def lines(self) -> list[tuple[int, int, int]]:
        """Return process, message and STARTED or DONE, in order."""
        if not self._log.exists():
            return []
        found = (line.split() for line in self._log.read_text(encoding="ascii").splitlines())
        return [(int(process), int(number), int(state)) for process, number, state in found]

    def restart(self) -> int:
        """Start again what has ended, by a kill or a refusal alone. Returns how many were refused so far."""
        for at, program in enumerate(self._running):
            if program.poll() is not None:
                assert program.returncode in {-signal.SIGKILL, REFUSED}
                self.refused += program.returncode == REFUSED
                self._running[at] = subprocess.Popen(self._command)
        return self.refused

    def kill(self, process: int) -> None:
        """Kill one and wait for its end."""
        program = next(one for one in self._running if one.pid == process)
        program.kill()
        program.wait()

    def end(self) -> None:
        """Kill them all."""
        for program in self._running:
            program.kill()
            program.wait()


def test_programs_of_one_name_run_nothing_twice_without_a_kill(
    redis_url: str, key_prefix: str, tmp_path: Path, new_history: Callable[..., History]
) -> None:
    stream, log = f"{key_prefix}work", tmp_path / "handled"
    client: Any = redis.Redis.from_url(redis_url)
    history = new_history(
        "programs of one name",
        Row(f"runtime.Consumer, {PROGRAMS} programs of one name", "none", "one Redis"),
        seed=0,
        promise={"effects": "at least once", "attempts": True},
        servers=[redis_facts(client)],
        claim_idle_s=600.0,
    )
    fleet = Fleet([sys.executable, "-c", PROGRAM, redis_url, str(log), stream, NAME, str(history.folder)], log)
    sent = kills = 0
    killed: set[int] = set()

    def working() -> int | None:
        """Return the process that is in the middle of a message, and feed it."""
        nonlocal sent
        fleet.restart()
        for _ in range(3):
            history.record("enqueue", id=sent)
            client.xadd(stream, {"data": f'{{"number":{sent}}}'})
            sent += 1
        lines = fleet.lines()
        done = {number for _, number, state in lines if state == DONE}
        return next((process for process, number, _ in lines if number not in done and process not in killed), None)

    try:
        # A second live engine of the name would run what the first has in flight: there must be such messages.
        wait_until(
            lambda: working() and fleet.refused, timeout_s=120, interval_s=0.02, message="no program was refused"
        )
        for _ in range(KILLS):
            process = wait_until(working, timeout_s=120, interval_s=0.02, message="no program has the name")
            assert process is not None
            history.kill(process, "in the handler")
            fleet.kill(process)
            killed.add(process)
            kills += 1
        history.recovery()
        wait_until(lambda: fleet.restart() and _is_drained(client, stream), timeout_s=120)
        history.record("drained")
    finally:
        fleet.end()

    lines = fleet.lines()
    runs = sum(state == STARTED for _, _, state in lines)
    done = sorted({number for _, number, state in lines if state == DONE})
    print(f"{kills} kills, {fleet.refused} refused, {sent} messages, {runs} runs")  # noqa: T201
    assert done == list(range(sent))
    assert [one for one in client.xinfo_consumers(stream, "processor") if one["name"] != NAME.encode()] == []
    history.record("state", effects=done, left={"pending": client.xpending(stream, "processor")["pending"]})
    assert history.judge()["examples"] == {}
    client.close()


def _is_drained(client: Any, stream: str) -> bool:
    (group,) = client.xinfo_groups(stream)
    return bool(group["pending"] == 0 and group["lag"] == 0)
