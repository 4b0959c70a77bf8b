"""The examples of docs/rabbit.md run as they are."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def channel(amqp_url: str) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    channel.queue_declare("orders-dead", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders-dead"}
    channel.queue_declare("orders", durable=True, arguments=arguments)
    yield channel
    connection.close()


def start(example: str, *args: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(EXAMPLES / example), *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_worker_example(channel: BlockingChannel, amqp_url: str) -> None:
    action = {"schema": "proca:action:2", "actionId": 7, "contact": {}}
    channel.basic_publish("", "orders", json.dumps(action).encode())
    process = start("rabbit_worker.py", amqp_url, "orders")
    assert process.stdout is not None
    while "synced action 7" not in (line := process.stdout.readline()):
        assert line, "the example ended early"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    assert process.returncode == 0


def test_the_replay_example(channel: BlockingChannel, amqp_url: str) -> None:
    out, _ = start("rabbit_replay.py", amqp_url, "orders", "orders-dead").communicate(timeout=60)

    assert "replayed 3" in out, out
    assert len(re.findall(r"order \d+ refused", out)) == 6
    assert out.count("shipped") == 3
