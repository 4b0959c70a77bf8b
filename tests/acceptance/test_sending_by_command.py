"""``enqueue``, ``emit`` and ``publish`` with a bad line, with a slow producer, and when they are ended."""

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

import pika
import pytest
from redis import Redis

from conquiet.testing import wait_until

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Piped = Callable[..., AbstractContextManager[tuple["subprocess.Popen[str]", IO[str]]]]

BAD_FILE = '{"n": 1}\n\n{"n": 2}\nnot JSON\n{"n": 3}\n'


@pytest.fixture
def piped(command: Path, clean_environment: Callable[..., dict[str, str]], tmp_path: Path) -> Piped:
    """The installed command with a pipe to its stdin that stays open."""

    @contextmanager
    def start(*words: str, **env: str) -> Iterator[tuple["subprocess.Popen[str]", IO[str]]]:
        process = subprocess.Popen(
            [command, *words],
            env=clean_environment(**env),
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        try:
            assert process.stdin is not None
            yield process, process.stdin
        finally:
            process.kill()
            process.communicate()

    return start


@pytest.fixture
def orders(amqp_url: str) -> Iterator[Callable[[], int]]:
    """The depth of a queue named orders."""
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    channel.queue_declare("orders", durable=True)
    yield lambda: int(channel.queue_declare("orders", passive=True).method.message_count)
    connection.close()


def test_emit_sends_what_stands_before_a_bad_line(
    invoke: Run, client: Redis, redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text(BAD_FILE)

    done = invoke(
        "emit", "order", "@bad.jsonl", "--stream", f"{key_prefix}orders", env={"CONQUIET_REDIS_URL": redis_url}
    )

    assert done.returncode == 1
    assert "line 4 is not valid JSON; 2 before it are emitted" in done.stderr
    assert client.xlen(f"{key_prefix}orders") == 2


def test_publish_confirms_what_stands_before_a_bad_line(
    invoke: Run, orders: Callable[[], int], amqp_url: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text(BAD_FILE)

    done = invoke("publish", "orders", "@bad.jsonl", env={"CONQUIET_RABBIT_URL": amqp_url})

    assert done.returncode == 1
    assert "line 4 is not valid JSON; 2 before it are confirmed" in done.stderr
    assert orders() == 2


def test_publish_keeps_its_connection_while_its_producer_thinks(
    piped: Piped, orders: Callable[[], int], amqp_url: str
) -> None:
    with piped("publish", "orders", "-", CONQUIET_RABBIT_URL=f"{amqp_url}?heartbeat=1") as (process, stdin):
        stdin.write('{"n": 1}\n')
        wait_until(lambda: orders() == 1)
        time.sleep(4)  # the broker gives up after two heartbeats
        stdin.write('{"n": 2}\n')
        said, complaints = process.communicate(timeout=60)

    assert (process.returncode, said, complaints) == (0, "2 published to orders\n", "")


@pytest.mark.parametrize(
    ("words", "ending", "exit_code", "reported"),
    [
        (("enqueue", "STREAM", "-"), signal.SIGTERM, 143, "at least [34] payloads are enqueued"),
        (("emit", "order", "-", "--stream", "STREAM"), signal.SIGINT, 130, "at least [34] are emitted"),
    ],
    ids=["enqueue", "emit"],
)
def test_lines_of_a_slow_producer_are_sent_soon_and_counted(
    piped: Piped,
    client: Redis,
    redis_url: str,
    key_prefix: str,
    words: tuple[str, ...],
    ending: signal.Signals,
    exit_code: int,
    reported: str,
) -> None:
    stream = f"{key_prefix}orders"
    given = [stream if word == "STREAM" else word for word in words]

    with piped(*given, CONQUIET_REDIS_URL=redis_url) as (process, stdin):
        stdin.write('{"n": 1}\n{"n": 2}\n{"n": 3}\n')
        wait_until(lambda: client.xlen(stream) == 3)
        stdin.write('{"n": 4}\n')  # it is sent after the reply to those before it has come
        wait_until(lambda: client.xlen(stream) == 4)
        process.send_signal(ending)
        process.wait(60)
        assert process.stderr is not None
        complaints = process.stderr.read()

    assert process.returncode == exit_code, complaints
    assert re.search(reported, complaints), complaints
    assert "Traceback" not in complaints
    assert "never retrieved" not in complaints


@pytest.mark.parametrize("bad", ["{bad", "[1]", ""])
def test_an_argument_that_is_no_json_object_is_a_usage_error(
    invoke: Run, client: Redis, redis_url: str, key_prefix: str, bad: str
) -> None:
    stream = f"{key_prefix}orders"
    env = {"CONQUIET_REDIS_URL": redis_url}

    for words in (("emit", "order.created", bad, "--stream", stream), ("enqueue", stream, bad)):
        done = invoke(*words, env=env)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("conquiet: the JSON given is")
    assert client.exists(stream) == 0
