"""``conquiet worker``: supervised processes against a real Redis, real signals."""

import json
import os
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from conquiet.testing import RedisServer, free_port, wait_until

MODULE = """
import asyncio, os
from redis.asyncio import Redis
from conquiet.runtime import Consumer

async def handle(message, ctx):
    await asyncio.sleep(0.002)
    await done.rpush(os.environ["DONE_KEY"], f"{os.getpid()} {message.data['n']}")

done = Redis.from_url(os.environ["CONQUIET_REDIS_URL"])

def build(concurrency=4):
    client = Redis.from_url(os.environ["CONQUIET_REDIS_URL"])
    return Consumer(streams=[os.environ["STREAM"]], redis=client, handler=handle, concurrency=concurrency,
                    claim_idle_ms=1000, block_ms=200)

consumer = build()
both = [build(), build()]"""


class Running:
    """A supervisor under test."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path, health_port: int, metrics_port: int) -> None:
        self.process = process
        self._log = log
        self.health_port = health_port
        self.metrics_port = metrics_port

    @property
    def log(self) -> str:
        return self._log.read_text()

    def get(self, path: str, port: int | None = None) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port or self.health_port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def pids(self) -> list[int]:
        status, body = self.get("/readyz")
        return [one["pid"] for one in json.loads(body)["processes"]] if status else []

    def wait_ready(self) -> None:
        wait_until(lambda: self.get("/readyz")[0] == 200, timeout_s=30, message=lambda: self.log)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(MODULE)
    return tmp_path


@pytest.fixture
def start(
    app: Path, command: Path, clean_environment: Callable[..., dict[str, str]], key_prefix: str
) -> Iterator[Callable[..., Running]]:
    """``start(url, "shop:consumer", "--processes", "3")``."""
    started: list[subprocess.Popen[str]] = []

    def begin(url: str, *words: str) -> Running:
        health_port, metrics_port = free_port(), free_port()
        log = app / f"log-{len(started)}"
        with log.open("w") as file:
            process = subprocess.Popen(
                [command, "worker", *words, "--health-port", str(health_port), "--metrics-port", str(metrics_port)],
                env=clean_environment(
                    CONQUIET_REDIS_URL=url, STREAM=f"{key_prefix}orders", DONE_KEY=f"{key_prefix}done"
                ),
                cwd=app,
                stdout=file,
                stderr=file,
                text=True,
            )
        started.append(process)
        return Running(process, log, health_port, metrics_port)

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def fill(client: Redis, key_prefix: str, count: int) -> None:
    with client.pipeline(transaction=False) as pipe:
        for number in range(count):
            pipe.xadd(f"{key_prefix}orders", {"data": json.dumps({"n": number})})
        pipe.execute()


def handled(client: Redis, key_prefix: str) -> list[str]:
    done: Any = client.lrange(f"{key_prefix}done", 0, -1)
    return list(done)


def still_there(client: Redis, stream: str) -> set[int]:
    """What is pending or not yet delivered: nothing of it is lost."""
    groups: Any = client.xinfo_groups(stream)
    pending: Any = client.xpending_range(stream, "processor", "-", "+", 10_000)
    waiting: Any = client.xrange(stream, f"({groups[0]['last-delivered-id']}", "+")
    held: list[Any] = [
        found for row in pending for found in client.xrange(stream, row["message_id"], row["message_id"]) or []
    ]
    return {json.loads(fields["data"])["n"] for _, fields in [*waiting, *held]}


def test_three_processes_share_the_work_survive_a_kill_and_drain_on_sigterm(
    start: Callable[..., Running], client: Redis, redis_url: str, key_prefix: str
) -> None:
    """Under load: one child killed with -9 is replaced, SIGTERM ends everything with 0, and nothing is lost."""
    total = 6_000
    worker = start(redis_url, "shop:consumer", "--processes", "3", "--grace", "20")
    worker.wait_ready()
    fill(client, key_prefix, total)
    wait_until(lambda: len({line.split()[0] for line in handled(client, key_prefix)}) == 3, timeout_s=30)

    victim = worker.pids()[0]
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: "starting again" in worker.log, timeout_s=30, message=lambda: worker.log)
    wait_until(lambda: victim not in worker.pids() and len(worker.pids()) == 3, timeout_s=30)
    worker.wait_ready()

    status, metrics = worker.get("/metrics", worker.metrics_port)
    worker.process.send_signal(signal.SIGTERM)
    exit_code = worker.process.wait(20)

    assert exit_code == 0, worker.log
    assert status == 200
    assert re.search(r'conquiet_runtime_\w+_total\{[^}]*stream="' + key_prefix, metrics)
    done = {int(line.split()[1]) for line in handled(client, key_prefix)}
    assert done | still_there(client, f"{key_prefix}orders") == set(range(total))
    assert "Traceback" not in worker.log


def test_readiness_is_false_while_redis_is_paused_and_comes_back(
    start: Callable[..., Running], private_redis: Callable[..., RedisServer]
) -> None:
    server = private_redis()
    worker = start(server.url, "shop:both")
    worker.wait_ready()

    server.pause()
    wait_until(lambda: worker.get("/readyz")[0] == 503, timeout_s=30)
    assert worker.get("/livez")[0] == 200
    server.resume()

    worker.wait_ready()
    assert worker.get("/nothing")[0] == 404


def test_a_crash_loop_ends_the_whole_with_a_clear_message(
    app: Path, start: Callable[..., Running], redis_url: str
) -> None:
    (app / "dying.py").write_text("import os\nos._exit(7)\n")

    worker = start(redis_url, "dying:consumer")

    assert worker.process.wait(60) == 1
    assert "ended with exit code 7, 5 times within 60 s: giving up" in worker.log


def test_a_module_that_is_not_there_is_one_sentence(start: Callable[..., Running], redis_url: str) -> None:
    worker = start(redis_url, "nowhere:consumer")

    assert worker.process.wait(30) == 2
    assert worker.log.startswith("conquiet: there is no module 'nowhere'\n  fix: ")
    assert "Traceback" not in worker.log


def test_concurrency_is_passed_to_a_function(start: Callable[..., Running], redis_url: str) -> None:
    start(redis_url, "shop:build", "--concurrency", "9").wait_ready()


def test_a_port_in_use_is_one_sentence(invoke: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        done = invoke("worker", "shop:consumer", "--health-port", str(port))

    assert done.returncode == 2
    assert f"port {port} on 127.0.0.1 cannot be used" in done.stderr


def test_reload_starts_again_when_a_file_changes(app: Path, start: Callable[..., Running], redis_url: str) -> None:
    worker = start(redis_url, "shop:consumer", "--reload")
    worker.wait_ready()
    before = worker.pids()

    (app / "shop.py").write_text(MODULE + "\n# changed\n")

    wait_until(lambda: "shop.py changed; starting again" in worker.log, timeout_s=30, message=lambda: worker.log)
    wait_until(lambda: worker.pids() not in ([], before, [None]), timeout_s=30)
    worker.wait_ready()


def test_the_processes_end_when_the_supervisor_is_killed(start: Callable[..., Running], redis_url: str) -> None:
    worker = start(redis_url, "shop:consumer", "--processes", "2")
    worker.wait_ready()
    pids = worker.pids()

    worker.process.kill()

    wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids), timeout_s=30)
