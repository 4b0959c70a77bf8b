"""Hosts as network namespaces of this machine, and a real partition: the link is down, and nothing reports it.

Each host has its own address and link. While a link is down, packets are lost: no connection is closed, no error
arrives. The other host takes over the messages of the isolated one; the isolated host finds its leases lost and works
again once the link is up.

Needs root and ``ip`` (iproute2), so it runs with ``make torture`` only. If namespaces are not permitted it fails with
that reason: a partition that did not happen proves nothing.
"""

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from tests.invariants.histories import History, Row, redis_facts, seed_or

from conquiet.testing import RedisServer, wait_until

CUTS = 20
WORKER = """
import asyncio, os, sys
import redis.asyncio
from conquiet.core.backoff import Backoff
from conquiet.runtime import Consumer
from tests.invariants import wire
from tests.invariants.recorder import Recorder
url, name, history = sys.argv[1:]
record = Recorder(history)
wire.note_stream_acks(record, lambda messages: [message.id for message in messages])

async def main():
    client = redis.asyncio.Redis.from_url(url, socket_timeout=3.0)
    async def handler(message, ctx):
        record("deliver", id=message.id)
        await asyncio.sleep(0.01)
        ctx.check_lease()
        await client.xadd("ran", {"id": message.id, "host": name})
        record("commit", id=message.id)
    await Consumer(streams=["work"], redis=client, handler=handler, concurrency=4, claim_idle_ms=2000, consumer_id=name,
                   max_deliveries=None, max_reconnects=10_000, reconnect=Backoff(base_s=0.1, cap_s=1.0)).start()

asyncio.run(main())
"""


class Host:
    """A namespace with one link to this machine."""

    def __init__(self, number: int) -> None:
        self.name = f"cq{uuid4().hex[:6]}"
        self.link, self.inner = f"{self.name}a", f"{self.name}b"
        self.gateway, self.address = f"10.231.{number}.1", f"10.231.{number}.2"
        self.worker: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        _ip("netns", "add", self.name)
        _ip("link", "add", self.link, "type", "veth", "peer", "name", self.inner, "netns", self.name)
        _ip("addr", "add", f"{self.gateway}/24", "dev", self.link)
        _ip("link", "set", self.link, "up")
        for words in (
            ("addr", "add", f"{self.address}/24", "dev", self.inner),
            ("link", "set", self.inner, "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", self.name, *words)

    def run(self, script: Path, port: int, history: History) -> None:
        words = [sys.executable, str(script), f"redis://{self.gateway}:{port}/0", self.name, str(history.folder)]
        self.worker = subprocess.Popen(["ip", "netns", "exec", self.name, *words])

    def cut(self) -> None:
        _ip("link", "set", self.link, "down")

    def heal(self) -> None:
        _ip("link", "set", self.link, "up")

    def stop(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait()
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)


def _ip(*words: str) -> None:
    if shutil.which("ip") is None:
        pytest.fail("NOT RUN: there is no ip program; install iproute2")
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.fail(f"NOT RUN: network namespaces are not permitted here: ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    made = [Host(number) for number in (1, 2)]
    try:
        for host in made:
            host.start()
        yield made
    finally:
        for host in made:
            host.stop()


@pytest.mark.timeout(600)
def test_a_host_behind_a_cut_link_loses_nothing(
    hosts: list[Host], private_redis: Callable[..., RedisServer], tmp_path: Path, new_history: Callable[..., History]
) -> None:
    addresses = [host.gateway for host in hosts]
    server = private_redis(extra_args=("--bind", "127.0.0.1", *addresses, "--protected-mode", "no"))
    raw: Any = redis.Redis.from_url(server.url, protocol=2, decode_responses=True)
    script = tmp_path / "worker.py"
    script.write_text(WORKER, encoding="utf-8")
    history = new_history(
        "hosts behind cut links",
        Row("runtime.Consumer", "none", "one Redis, two hosts in network namespaces"),
        seed=seed_or(1),
        promise={"effects": "at least once", "commits": True},
        servers=[redis_facts(raw)],
    )
    for host in hosts:
        host.run(script, server.port, history)
    sent: list[str] = []

    def send() -> None:
        sent.append(raw.xadd("work", {"data": json.dumps({"n": len(sent)})}))
        history.record("enqueue", id=sent[-1])

    def feed(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            send()
            time.sleep(0.01)

    def ran() -> list[dict[str, str]]:
        return [fields for _, fields in raw.xrange("ran")]

    def all_work() -> bool:
        feed(0.1)
        return {row["host"] for row in ran()} == {host.name for host in hosts}

    wait_until(all_work)
    for number in range(CUTS):
        host = hosts[number % 2]
        with history.outage("link cut"):
            host.cut()
            feed(4.0)  # longer than the claim time: the other host takes over
            host.heal()
        before = Counter(row["host"] for row in ran())[host.name]
        feed(1.0)

        def is_back(name: str = host.name, before: int = before) -> bool:
            send()
            return Counter(row["host"] for row in ran())[name] > before

        wait_until(is_back)
    history.recovery()
    wait_until(lambda: {row["id"] for row in ran()} == set(sent), timeout_s=120)
    wait_until(lambda: raw.xpending("work", "processor")["pending"] == 0, timeout_s=120)
    history.record("drained")
    runs = Counter(row["id"] for row in ran())
    history.record("state", effects=sorted(runs.elements()), left={"pending": 0})
    raw.close()

    assert set(runs) == set(sent)
    # A run is repeated if its effect was written and its acknowledgement lost: at most what a host had in flight.
    assert runs.total() - len(runs) <= CUTS * 4 * 3
    assert history.judge()["examples"] == {}
