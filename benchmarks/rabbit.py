"""RabbitMQ: messages per second from a backlog, handled and acknowledged, compared with the raw clients and the peers.

    .venv/bin/python benchmarks/rabbit.py [--quick] [--rounds N] [--messages N] [--only NAME,NAME]

Runs on a private broker. Peers are measured when they are there (``make bench-peers``).

Every contestant is a process of its own with one worker. It gets a durable queue with persistent messages, parses the
JSON body and acknowledges each message by hand. The clock runs from the first message to the last. Contestants take
turns within a round, and the median over the rounds counts: only ratios inside one run mean anything.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pika

from conquiet.testing import RabbitMQServer

HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache"
PEER_PYTHON = CACHE / "bench-venv" / "bin" / "python"
NODE_FOLDER = CACHE / "bench-node"
BODY = {"schema": "proca:action:2", "actionId": 1, "campaignId": 2, "campaign": {"name": "c"}, "contact": {}}

# name: its script under rabbit_peers
OURS = {
    "conquiet async": "conquiet_async",
    "conquiet threads": "conquiet_threads",
    "conquiet async uvloop": "conquiet_uvloop",
}
PEERS = {
    "raw pika asyncio (ack each)": "pika_each",
    "raw pika asyncio (multiple-ack)": "pika_multiple",
    "raw aio-pika": "aio_pika_raw",
    "FastStream": "faststream_peer",
    "taskiq": "taskiq_peer",
    "dramatiq": "dramatiq_peer",
    "Celery solo": "celery_peer",
}
NODE = {"Node rabbitmq-client": "rabbitmq_client", "Node @proca/queue": "proca_queue"}
_TIMEOUT_S = 40
PYTHON_PEERS = ("FastStream", "taskiq", "dramatiq", "Celery solo")


class Arena:
    """One broker; fills a queue for each run."""

    def __init__(self, server: RabbitMQServer) -> None:
        self.url = server.url
        self.channel = pika.BlockingConnection(pika.URLParameters(server.url)).channel()

    def fill(self, name: str, messages: int) -> str:
        queue = "bench"
        self.channel.queue_delete(queue)
        self.channel.queue_declare(queue, durable=True)
        for body, properties in _messages_for(name, messages):
            self.channel.basic_publish("", queue, body, properties)
        # The publisher's own channel proves that the broker has them all.
        while self.channel.queue_declare(queue, passive=True).method.message_count < messages:
            pass
        return queue

    def run(self, name: str, messages: int, prefetch: int) -> float:
        """Messages per second of one contestant."""
        queue = self.fill(name, messages)
        command = [*_command(name), self.url, queue, str(messages), str(prefetch)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
            cwd=HERE,
            env=dict(os.environ) | {"PYTHONPATH": str(HERE.parent / "src")},
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if not lines:
            raise RuntimeError(f"{name} gave no result:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return messages / float(lines[-1].split()[1])


def _messages_for(name: str, number: int) -> list[tuple[bytes, pika.BasicProperties]]:
    body, headers = json.dumps(BODY).encode(), None
    # No content type for Node: rabbitmq-client would parse the body a second time.
    properties = pika.BasicProperties(delivery_mode=2, content_type=None if name in NODE else "application/json")
    if name == "taskiq":
        task = {"task_id": "1", "task_name": "bench", "labels": {}, "args": [BODY], "kwargs": {}}
        headers = {"task_id": "1", "task_name": "bench"}
        body = json.dumps(task | {"labels_types": None}).encode()
    elif name == "dramatiq":
        message = {"queue_name": "bench", "actor_name": "bench", "args": [BODY], "kwargs": {}, "options": {}}
        body = json.dumps(message | {"message_id": "1", "message_timestamp": 0}).encode()
    elif name == "Celery solo":
        body = json.dumps([[BODY], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]).encode()
        headers = {"lang": "py", "task": "bench", "id": "1", "root_id": "1", "argsrepr": "", "kwargsrepr": ""}
        properties.content_encoding = "utf-8"
    properties.headers = headers
    return [(body, properties)] * number


def _command(name: str) -> list[str]:
    if name in OURS:
        # uvloop is not a dependency of ours: that one runs in the peers' environment, on this checkout's code.
        python = str(PEER_PYTHON) if "uvloop" in name else sys.executable
        return [python, str(HERE / "rabbit_peers" / f"{OURS[name]}.py")]
    if name in PEERS:
        return [str(PEER_PYTHON), str(HERE / "rabbit_peers" / f"{PEERS[name]}.py")]
    return ["node", str(HERE / "rabbit_peers" / f"{NODE[name]}.cjs"), str(NODE_FOLDER / "node_modules")]


def contestants(only: str | None) -> list[str]:
    """Return the contenders that can run here."""
    names = list(OURS)
    if PEER_PYTHON.exists():
        names += PEERS
    else:
        print(f"Python peers are left out: {PEER_PYTHON} is missing (see --help)")
    if (NODE_FOLDER / "node_modules").exists():
        names += NODE
    else:
        print(f"Node peers are left out: {NODE_FOLDER} is missing (see --help)")
    return [name for name in names if only is None or name in only.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, fewer messages")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--prefetch", type=int, nargs="*", default=[100, 2])
    parser.add_argument("--only", default=None, help="names, separated by commas")
    args = parser.parse_args()
    rounds, messages = (1, 4_000) if args.quick else (args.rounds, args.messages)
    names = contestants(args.only)
    rates: dict[tuple[int, str], list[float]] = defaultdict(list)
    with RabbitMQServer() as server:
        arena = Arena(server)
        for turn in range(rounds):
            for prefetch in args.prefetch:
                # Each round begins with another contestant, so that none is always the first on a cold broker.
                start = turn * len(names) // rounds
                for name in names[start:] + names[:start]:
                    number = messages if prefetch > 10 else messages // 3
                    try:
                        rates[prefetch, name].append(arena.run(name, number, prefetch))
                    except (RuntimeError, subprocess.TimeoutExpired) as error:
                        print(f"{name} is left out: {error}")
                        names.remove(name)
    for prefetch in args.prefetch:
        _print_table(prefetch, {name: statistics.median(rates[prefetch, name]) for name in names})


def _print_table(prefetch: int, medians: dict[str, float]) -> None:
    ours = medians.get("conquiet async", 0.0)
    print(f"\nprefetch {prefetch}: messages per second, and conquiet async in multiples of it")
    for name, rate in sorted(medians.items(), key=lambda item: -item[1]):
        print(f"  {name:30} {rate:9,.0f}   {ours / rate:5.2f}x")
    peers = {name: rate for name, rate in medians.items() if name in PYTHON_PEERS}
    if peers:
        fastest = max(peers, key=lambda name: peers[name])
        print(f"  fastest Python peer: {fastest}; conquiet async is {ours / peers[fastest]:.1f} times as fast")


if __name__ == "__main__":
    main()
