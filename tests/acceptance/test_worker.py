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
    open("concurrency", "w").write(str(concurrency))
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
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def pids(self) -> list[int | None]:
        status, body = self.get("/readyz")
        return [one["pid"] for one in json.loads(body)["processes"]] if status else []

    def wait_ready(self) -> None:
        wait_until(lambda: self.get("/readyz")[0] == 200, message=lambda: self.log)

    def wait_for_pids(self, number: int) -> list[int]:
        """Return the pids once every process has one; a busy machine may reply late."""
        found: list[int] = []

        def is_done() -> bool:
            found[:] = [pid for pid in self.pids() if pid is not None]
            return len(found) == number

        wait_until(is_done, message=lambda: self.log)
        return found

    def wait_for_log(self, sign: str) -> None:
        wait_until(lambda: sign in self.log, message=lambda: self.log)

    def lost_a_port(self) -> bool:
        """Wait until it listens or has ended; true if another process took one of the chosen ports."""
        wait_until(lambda: self.process.poll() is not None or self.get("/livez")[0] == 200)
        return self.process.poll() is not None and "cannot be used" in self.log


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

    def begin(url: str, *words: str, **more: str) -> Running:
        running = attempt(url, *words, **more)
        while running.lost_a_port():
            running = attempt(url, *words, **more)
        return running

    def attempt(url: str, *words: str, **more: str) -> Running:
        health_port, metrics_port = free_port(), free_port()
        log = app / f"log-{len(started)}"
        with log.open("w") as file:
            process = subprocess.Popen(
                [command, "worker", *words, "--health-port", str(health_port), "--metrics-port", str(metrics_port)],
                env=clean_environment(
                    CONQUIET_REDIS_URL=url, STREAM=f"{key_prefix}orders", DONE_KEY=f"{key_prefix}done", **more
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


def fill(client: Redis, key_prefix: str, numbers: range) -> None:
    with client.pipeline(transaction=False) as pipe:
        for number in numbers:
            pipe.xadd(f"{key_prefix}orders", {"data": json.dumps({"n": number})})
        pipe.execute()


def handled(client: Redis, key_prefix: str) -> list[str]:
    done: Any = client.lrange(f"{key_prefix}done", 0, -1)
    return list(done)


def still_there(client: Redis, stream: str) -> set[int]:
    """Return the pending and undelivered entries: none of them is lost."""
    groups: Any = client.xinfo_groups(stream)
    pending: Any = client.xpending_range(stream, "processor", "-", "+", 10_000)
    waiting: Any = client.xrange(stream, f"({groups[0]['last-delivered-id']}", "+")
    held: list[Any] = [
        found for row in pending for found in client.xrange(stream, row["message_id"], row["message_id"]) or []
    ]
    return {json.loads(fields["data"])["n"] for _, fields in [*waiting, *held]}


@pytest.mark.spec("CQ-001.7", "CQ-001.13", "CQ-001.14")
def test_three_processes_share_the_work_survive_a_kill_and_drain_on_sigterm(
    start: Callable[..., Running], client: Redis, redis_url: str, key_prefix: str
) -> None:
    """Under load: one child killed with -9 is replaced, SIGTERM ends everything with 0, and nothing is lost."""
    worker = start(redis_url, "shop:consumer", "--processes", "3", "--grace-s", "60")
    worker.wait_ready()
    total = 0

    def all_three_are_at_work() -> bool:
        # Two may finish what there is while the machine has no time for the third: there is always more.
        nonlocal total
        done = handled(client, key_prefix)
        if total - len(done) < 3_000:
            fill(client, key_prefix, range(total, total + 3_000))
            total += 3_000
        return len({line.split()[0] for line in done}) == 3

    wait_until(all_three_are_at_work)

    pids = worker.wait_for_pids(3)
    os.kill(pids[0], signal.SIGKILL)
    worker.wait_for_log("restarting")
    wait_until(lambda: pids[0] not in worker.wait_for_pids(3))
    worker.wait_ready()

    status, metrics = worker.get("/metrics", worker.metrics_port)
    worker.process.send_signal(signal.SIGTERM)
    exit_code = worker.process.wait()

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
    wait_until(lambda: worker.get("/readyz")[0] == 503)
    assert worker.get("/livez")[0] == 200
    server.resume()

    worker.wait_ready()
    assert worker.get("/nothing")[0] == 404


def test_a_crash_loop_ends_the_command_with_a_clear_message(
    app: Path, start: Callable[..., Running], redis_url: str
) -> None:
    (app / "dying.py").write_text("import os\nos._exit(7)\n")

    worker = start(redis_url, "dying:consumer")

    assert worker.process.wait() == 1
    assert "ended with exit code 7, 5 times within 60 s: giving up" in worker.log


def test_a_missing_driver_is_named_and_no_restart_is_tried(
    app: Path, start: Callable[..., Running], redis_url: str
) -> None:
    (app / "driverless.py").write_text(
        "import os, sys\n"
        "sys.modules['aiosqlite'] = None  # as if it was not installed\n"
        "from sqlalchemy.ext.asyncio import AsyncSession\n"
        "from conquiet import App\n"
        "app = App('shop', redis=os.environ['CONQUIET_REDIS_URL'], database='sqlite+aiosqlite:///shop.db')\n"
        "@app.handler('order.paid')\n"
        "async def book(order: dict, session: AsyncSession) -> None: ...\n"
    )

    worker = start(redis_url, "driverless:app")

    assert worker.process.wait() == 2, worker.log
    assert "driverless:app needs 'aiosqlite'" in worker.log
    assert "install aiosqlite" in worker.log
    assert "restarting" not in worker.log


def test_a_module_that_is_not_there_is_one_sentence(start: Callable[..., Running], redis_url: str) -> None:
    worker = start(redis_url, "nowhere:consumer")

    assert worker.process.wait() == 2
    assert "conquiet: there is no module 'nowhere'\n  fix: " in worker.log
    assert "Traceback" not in worker.log


def test_concurrency_is_passed_to_a_function(app: Path, start: Callable[..., Running], redis_url: str) -> None:
    start(redis_url, "shop:build", "--concurrency", "9").wait_ready()

    assert (app / "concurrency").read_text() == "9"


def test_a_port_in_use_is_one_sentence(invoke: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        done = invoke("worker", "shop:consumer", "--health-port", str(port))

    assert done.returncode == 2
    assert f"port {port} on 127.0.0.1 cannot be used" in done.stderr


def test_reload_starts_again_when_a_file_changes(app: Path, start: Callable[..., Running], redis_url: str) -> None:
    worker = start(redis_url, "shop:consumer", "--reload")
    worker.wait_ready()
    before = worker.wait_for_pids(1)

    (app / "shop.py").write_text(MODULE + "\n# changed\n")

    worker.wait_for_log("shop.py changed; restarting")
    wait_until(lambda: worker.wait_for_pids(1) != before)
    worker.wait_ready()


def test_reload_survives_a_file_that_is_saved_half(app: Path, start: Callable[..., Running], redis_url: str) -> None:
    """An editor empties a file before it writes it: the process in between cannot start, the next one can."""
    worker = start(redis_url, "shop:consumer", "--reload")
    worker.wait_ready()

    (app / "shop.py").write_text("")
    worker.wait_for_log("module 'shop' has no 'consumer'")
    worker.wait_for_log("waiting for the next change of a .py file")
    (app / "shop.py").write_text(MODULE)

    worker.wait_ready()
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait() == 0, worker.log


WAITING = """
import os, pathlib, time
if "CONQUIET_WORKER_SETTINGS" in os.environ or __name__ == "slow":
    pathlib.Path("here").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
"""


def sigterm_is_pending(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    masks = re.findall(r"^S..Pnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return any(int(mask, 16) & 1 << (signal.SIGTERM - 1) for mask in masks)


@pytest.mark.parametrize("where", ["slow", "sitecustomize"])
def test_a_process_stopped_during_its_start_ends_in_good_order(
    app: Path, start: Callable[..., Running], redis_url: str, where: str
) -> None:
    """As in a rolling update: in the middle of the user's import, or before Python has come to any code of ours."""
    (app / f"{where}.py").write_text(WAITING)
    target = "slow:consumer" if where == "slow" else "shop:consumer"
    worker = start(redis_url, target, "--grace-s", "60", PYTHONPATH=str(app))
    wait_until((app / "here").exists, message=lambda: worker.log)
    (pid,) = worker.wait_for_pids(1)

    worker.process.send_signal(signal.SIGTERM)
    if where == "sitecustomize":  # Python starts on only after the signal has come
        wait_until(lambda: worker.process.poll() is not None or sigterm_is_pending(pid))
        (app / "go").touch()

    assert worker.process.wait() == 0, worker.log
    assert "Traceback" not in worker.log


def test_the_processes_end_when_the_supervisor_is_killed(
    start: Callable[..., Running], app: Path, redis_url: str
) -> None:
    worker = start(redis_url, "shop:consumer", "--processes", "2", TMPDIR=str(app))
    worker.wait_ready()
    pids = worker.wait_for_pids(2)
    assert list(app.glob("conquiet-worker-*"))

    worker.process.kill()

    wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids))
    assert list(app.glob("conquiet-worker-*")) == [], "the last of them has removed it"


def test_the_next_start_removes_the_folder_of_processes_that_were_all_killed(
    start: Callable[..., Running], app: Path, redis_url: str
) -> None:
    worker = start(redis_url, "shop:consumer", "--processes", "2", TMPDIR=str(app))
    worker.wait_ready()
    pids = worker.wait_for_pids(2)
    worker.process.send_signal(signal.SIGSTOP)  # it would restart them
    for pid in (*pids, worker.process.pid):
        os.kill(pid, signal.SIGKILL)
    worker.process.wait()
    (left,) = app.glob("conquiet-worker-*")

    following = start(redis_url, "shop:consumer", TMPDIR=str(app))
    following.wait_ready()

    (used,) = app.glob("conquiet-worker-*")
    assert used != left
    following.process.send_signal(signal.SIGTERM)
    assert following.process.wait() == 0, following.log
    assert list(app.glob("conquiet-worker-*")) == []


STUBBORN = """
import os, time
import redis, redis.asyncio
from conquiet.runtime import Consumer

url = os.environ["CONQUIET_REDIS_URL"]

def handle(message, ctx):
    redis.Redis.from_url(url).rpush(os.environ["DONE_KEY"], "begun")
    time.sleep(600)

client = redis.asyncio.Redis.from_url(url)
consumer = Consumer(streams=[os.environ["STREAM"]], redis=client, handler=handle, block_ms=200)
"""


def test_a_second_signal_ends_processes_that_hang_and_leaves_nothing_behind(
    app: Path, start: Callable[..., Running], client: Redis, redis_url: str, key_prefix: str
) -> None:
    (app / "stubborn.py").write_text(STUBBORN)
    folder = app / "tmp"
    folder.mkdir()
    worker = start(redis_url, "stubborn:consumer", "--grace-s", "600", TMPDIR=str(folder))
    fill(client, key_prefix, range(1))
    wait_until(lambda: handled(client, key_prefix) == ["begun"], message=lambda: worker.log)
    (pid,) = worker.wait_for_pids(1)

    worker.process.send_signal(signal.SIGTERM)
    wait_until(lambda: worker.log.count("Received signal") >= 1, message=lambda: worker.log)
    worker.process.send_signal(signal.SIGTERM)

    assert worker.process.wait() == 1, worker.log
    assert not Path(f"/proc/{pid}").exists()
    assert list(folder.iterdir()) == []
    assert still_there(client, f"{key_prefix}orders") == {0}


def test_a_process_stopped_by_another_process_is_replaced(start: Callable[..., Running], redis_url: str) -> None:
    worker = start(redis_url, "shop:consumer")
    worker.wait_ready()
    (first,) = worker.wait_for_pids(1)

    os.kill(first, signal.SIGTERM)

    wait_until(lambda: "was stopped by another process; restarting" in worker.log)
    worker.wait_ready()
    assert first not in worker.pids()
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait() == 0, worker.log


def test_a_module_that_ends_the_process_at_its_import_is_one_sentence(
    app: Path, start: Callable[..., Running], redis_url: str
) -> None:
    (app / "quits.py").write_text("raise SystemExit(0)")
    worker = start(redis_url, "quits:consumer")

    assert worker.process.wait() == 2
    assert "cannot be imported: SystemExit at its import" in worker.log
