"""Rolling deploys and recycling of real worker processes: nothing is lost, nothing is charged, no name is left."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from conquiet import SyncEmitter
from conquiet.processor import NewMessage
from conquiet.testing import wait_until

TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
DEPLOYS = int(os.environ.get("CONQUIET_DEPLOYS", "50" if TORTURE else "1"))
"""``CONQUIET_DEPLOYS=20`` makes a torture shorter."""

MODULE = """
import asyncio, os
from redis.asyncio import Redis
from conquiet import Processor
from conquiet.queue import housekeeping

housekeeping._NAMES_S = float(os.environ["NAMES_S"])
url, stream, done_key = (os.environ[name] for name in ("CONQUIET_REDIS_URL", "STREAM", "DONE_KEY"))
done = Redis.from_url(url)
processor = Processor(Redis.from_url(url), [stream], concurrency=4)

@processor.handler("pay")
async def pay(ctx):
    await done.set(done_key + ":begun", 1)
    await asyncio.sleep(ctx.data.get("takes_s", 0.01))
    await done.rpush(done_key, f"{ctx.id} {ctx.attempt} {ctx.delivery.delivery_count} {os.getpid()}")
"""


class Workers:
    """Supervisors of one module, each with a separate log."""

    def __init__(self, folder: Path, command: Path, environment: dict[str, str]) -> None:
        self._folder, self._command, self._environment = folder, command, environment
        self.running: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        return self.start_together(1, *words)[0]

    def start_together(self, count: int, *words: str) -> "list[subprocess.Popen[bytes]]":
        """Start this many, and return when all are ready."""
        started = [self._launch(*words) for _ in range(count)]
        for _, log in started:
            wait_until(lambda: "processes ready" in log.read_text(), timeout_s=120, message=self.log)  # noqa: B023
        return [process for process, _ in started]

    def _launch(self, *words: str) -> "tuple[subprocess.Popen[bytes], Path]":
        self._logs.append(self._folder / f"log-{len(self._logs)}")
        with self._logs[-1].open("w") as log:
            process = subprocess.Popen(
                [self._command, "worker", "shop:processor", *words],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        self.running.append(process)
        return process, self._logs[-1]

    def stop(self, process: "subprocess.Popen[bytes]") -> None:
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, self.log()
        self.running.remove(process)

    def log(self) -> str:
        return "\n".join(file.read_text() for file in self._logs)

    def kill(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()


@pytest.fixture
def workers(
    tmp_path: Path, command: Path, clean_environment: Callable[..., dict[str, str]], redis_url: str, key_prefix: str
) -> "Iterator[Workers]":
    (tmp_path / "shop.py").write_text(MODULE)
    environment = clean_environment(
        CONQUIET_REDIS_URL=redis_url,
        STREAM=f"{key_prefix}orders",
        DONE_KEY=f"{key_prefix}done",
        NAMES_S="10" if TORTURE else "0.5",  # at full size as often as by default
    )
    crew = Workers(tmp_path, command, environment)
    yield crew
    crew.kill()


def _results(client: Redis, key_prefix: str) -> list[list[str]]:
    found: Any = client.lrange(f"{key_prefix}done", 0, -1)
    return [line.split() for line in found]


def _consumers(client: Redis, stream: str) -> set[str]:
    """Return the process ids in the names of the group's consumers."""
    found: Any = client.xinfo_consumers(stream, "processor")
    return {one["name"].rpartition("-")[2] for one in found}


def _live(crew: "list[subprocess.Popen[bytes]]") -> set[str]:
    """Return the process ids of the workers of these supervisors."""
    found = [Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split() for one in crew]
    return {pid for children in found for pid in children}


@pytest.mark.timeout(1_800 if TORTURE else 300)
def test_rolling_deploys_lose_and_charge_nothing(workers: Workers, client: Redis, key_prefix: str) -> None:
    """Each deploy replaces four workers one after the other while messages keep coming."""
    stream = f"{key_prefix}orders"
    emitted = 0
    with SyncEmitter(client, stream) as emitter:
        crew = workers.start_together(4)
        for _ in range(DEPLOYS):
            for place in range(4):
                emitter.emit_many([NewMessage("pay", id=f"m{emitted + number}") for number in range(50)])
                emitted += 50
                workers.stop(crew[place])
                crew[place] = workers.start()
        wait_until(lambda: len(_results(client, key_prefix)) >= emitted, timeout_s=120, message=workers.log)

        def names_are_the_live_workers() -> bool:
            """Before Redis 7.2 a worker has a name once it was given an entry: emit until each was."""
            nonlocal emitted
            if len(_results(client, key_prefix)) == emitted:
                emitter.emit_many([NewMessage("pay", id=f"m{emitted + number}") for number in range(50)])
                emitted += 50
            return _consumers(client, stream) == _live(crew)

        # Entries that a stopped worker has released stay under its name until they are claimed; then the name is
        # removed.
        wait_until(names_are_the_live_workers, timeout_s=120, message=workers.log)
        wait_until(lambda: len(_results(client, key_prefix)) >= emitted, timeout_s=120, message=workers.log)
        for process in crew:
            workers.stop(process)

    results = _results(client, key_prefix)
    assert sorted(line[0] for line in results) == sorted(f"m{number}" for number in range(emitted))
    assert {line[1] for line in results} == {"1"}  # attempts charged
    assert {line[2] for line in results} == {"1"}  # deliveries charged


@pytest.mark.timeout(300)
def test_a_signal_to_the_whole_control_group_drains_as_well(workers: Workers, client: Redis, key_prefix: str) -> None:
    """By default systemd signals each process of a unit, and the supervisor then signals its processes again."""
    with SyncEmitter(client, f"{key_prefix}orders") as emitter:
        supervisor = workers.start()
        emitter.emit("pay", {"takes_s": 1.5}, id="slow")
        wait_until(lambda: client.exists(f"{key_prefix}done:begun") == 1, message=workers.log)
        for pid in _live([supervisor]):
            os.kill(int(pid), signal.SIGTERM)
        workers.stop(supervisor)

    assert [line[:3] for line in _results(client, key_prefix)] == [["slow", "1", "1"]]


@pytest.mark.timeout(300)
def test_processes_are_recycled_one_at_a_time_at_no_cost(workers: Workers, client: Redis, key_prefix: str) -> None:
    stream = f"{key_prefix}orders"
    with SyncEmitter(client, stream) as emitter:
        supervisor = workers.start("--processes", "2", "--max-messages", "40")
        emitted = 0

        def both_were_replaced() -> bool:
            nonlocal emitted
            results = _results(client, key_prefix)
            if len(results) == emitted:
                emitter.emit_many([NewMessage("pay", id=f"m{emitted + number}") for number in range(20)])
                emitted += 20
            return len({line[3] for line in results}) >= 4

        wait_until(both_were_replaced, timeout_s=120, message=workers.log)
        wait_until(lambda: len(_results(client, key_prefix)) >= emitted, timeout_s=120, message=workers.log)
        workers.stop(supervisor)

    results = _results(client, key_prefix)
    assert sorted(line[0] for line in results) == sorted(f"m{number}" for number in range(emitted))
    assert {(line[1], line[2]) for line in results} == {("1", "1")}
    assert "has handled" in workers.log()


def test_a_target_that_counts_no_messages_is_refused(workers: Workers, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from conquiet.core.lifecycle import Health, Status\n"
        "class Bare:\n"
        "    name, status, abandoned = 'bare', Status.NEW, 0\n"
        "    def run(self): pass\n    def stop(self): pass\n    def close(self): pass\n"
        "    def health(self): return Health(status=Status.RUNNING)\n"
        "processor = Bare()\n"
    )

    done = subprocess.run(
        [workers._command, "worker", "shop:processor", "--max-messages", "5"],
        cwd=tmp_path,
        env=workers._environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 2
    assert "--max-messages counts messages that handlers have handled, and shop:processor runs none" in done.stderr
