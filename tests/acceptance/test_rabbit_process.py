"""The consumer as the whole job of a process: real signals, real exit codes, the broker's view afterwards."""

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pika
import pytest

from conquiet.testing import wait_until

HEAD = """
import asyncio, logging, sys, threading, time
from conquiet.rabbit import run_process, sync_queue
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
class Plain(logging.Formatter):
    def format(self, record):
        return f"{record.levelname} {record.getMessage()} {getattr(record, 'counters', '')}"
logging.getLogger().handlers[0].setFormatter(Plain())
logging.getLogger("pika").setLevel(logging.CRITICAL)
url = sys.argv[1]
def say(*words):
    # In one write: print() makes several, and lines of the log from another thread would stand between them.
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()
"""

# The process ends with run_process's code; sync_queue returns the counters, or raises, which ends it with 1.
END = {"run_process": "sys.exit(run_process(url, 'work', syncer))", "sync_queue": "sync_queue(url, 'work', syncer)"}

Start = Callable[[str], "subprocess.Popen[str]"]


class Broker:
    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self.connection.channel()
        self.channel.queue_declare("work", durable=True)

    def put(self, number: int) -> None:
        for action_id in range(number):
            self.channel.basic_publish(
                "", "work", json.dumps({"schema": "proca:action:2", "actionId": action_id}).encode()
            )

    def depth(self) -> int:
        return int(self.channel.queue_declare("work", passive=True).method.message_count)


@pytest.fixture
def broker(amqp_url: str) -> Iterator[Broker]:
    made = Broker(amqp_url)
    yield made
    made.connection.close()


@pytest.fixture
def start(amqp_url: str) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(body: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(HEAD) + textwrap.dedent(body), amqp_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    assert process.stdout is not None
    read = ""
    for line in process.stdout:
        read += line
        if text in line:
            return read
    raise AssertionError(f"{text!r} never came: {read}")


def let_go_on(process: "subprocess.Popen[str]") -> None:
    """Give a syncer the line that it waits for."""
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()


def read_the_rest(process: "subprocess.Popen[str]") -> str:
    """Read to the end and wait for it. Not communicate(): it would miss what reading line by line has buffered."""
    assert process.stdout is not None
    rest = process.stdout.read()
    process.wait()
    return rest


@pytest.mark.spec("MW-001.2", "MW-007.1", "MW-007.2", "MW-007.3", "MW-007.4")
@pytest.mark.parametrize(
    ("signum", "kind", "door"),
    [
        (signal.SIGTERM, "async def", "run_process"),
        (signal.SIGINT, "async def", "sync_queue"),
        (signal.SIGTERM, "def", "sync_queue"),
        (signal.SIGINT, "def", "run_process"),
    ],
)
def test_a_signal_ends_it_gracefully_with_exit_code_0(
    broker: Broker, start: Start, signum: signal.Signals, kind: str, door: str
) -> None:
    broker.put(3)
    wait = "await asyncio.to_thread(sys.stdin.readline)" if kind == "async def" else "sys.stdin.readline()"
    process = start(f"""
    {kind} syncer(message):
        say("started", message["actionId"])
        {wait}
        say("finished", message["actionId"])
        return True
    {END[door]}
    """)
    read_until(process, "started 0")
    process.send_signal(signum)
    seen = read_until(process, "Received signal")  # so the syncer cannot be through before
    let_go_on(process)

    out = seen + read_the_rest(process)

    assert process.returncode == 0, out
    assert "finished 0" in out
    assert "started 1" not in out
    closing = [out.index(text) for text in ("consumer closed", "connection closed", "final counters")]
    assert closing == sorted(closing)
    assert "'ack': 1" in out[closing[-1] :]
    wait_until(lambda: broker.depth() == 2)


@pytest.mark.spec("MW-006.1", "MW-006.2", "MW-004.5", "MW-004.6", "MW-007.3")
@pytest.mark.parametrize(
    ("ending", "door"),
    [
        ("raise ValueError('jane@example.org')", "run_process"),
        ("return None", "run_process"),
        ("return None", "sync_queue"),
    ],
)
def test_a_fatal_error_is_logged_and_is_exit_code_1(broker: Broker, start: Start, ending: str, door: str) -> None:
    broker.put(2)
    process = start(f"""
    async def syncer(message):
        {ending}
    {END[door]}
    """)

    out = read_the_rest(process)

    assert process.returncode == 1, out
    order = [
        out.index(text)
        for text in ("fatal error, the consumer stops", "consumer closed", "connection closed", "final counters")
    ]
    assert order == sorted(order)
    assert "jane" not in out
    wait_until(lambda: broker.depth() == 2)


@pytest.mark.spec("MW-001.3")
@pytest.mark.parametrize(
    ("where", "door"),
    [
        ("asyncio.get_running_loop().call_soon(lambda: 1 / 0)", "run_process"),
        ("threading.Thread(target=lambda: 1 / 0).start()", "run_process"),
        ("asyncio.ensure_future(fails())", "run_process"),  # an unhandled rejection: nothing awaits the task
        ("threading.Thread(target=lambda: 1 / 0).start()", "sync_queue"),
    ],
)
def test_an_uncaught_error_is_logged_and_ends_the_process(broker: Broker, start: Start, where: str, door: str) -> None:
    broker.put(1)
    process = start(f"""
    async def fails():
        return 1 / 0
    async def syncer(message):
        {where}
        await asyncio.sleep(0.2)
        return True
    {END[door]}
    """)

    out = read_the_rest(process)

    assert process.returncode == 1, out
    # The line names the error's class; the traceback of the process comes last.
    order = [out.index("uncaught error"), out.index("connection closed"), out.rindex("ZeroDivisionError")]
    assert order == sorted(order)
    assert broker.depth() == 0  # the syncer had the grace period to finish


def test_handlers_that_were_abandoned_end_it_with_exit_code_1(broker: Broker, start: Start) -> None:
    """Their messages will be delivered again: a supervisor that reads 0 takes the work for done."""
    broker.put(1)
    process = start("""
    async def syncer(message):
        say("started")
        await asyncio.Event().wait()
    sys.exit(run_process(url, "work", syncer, grace_s=0.2))
    """)
    read_until(process, "started")
    process.send_signal(signal.SIGTERM)

    out = read_the_rest(process)

    assert process.returncode == 1, out
    assert "handlers abandoned after the grace period" in out
    wait_until(lambda: broker.depth() == 1)


def test_a_second_signal_forces_the_end(broker: Broker, start: Start) -> None:
    broker.put(1)
    process = start("""
    def syncer(message):
        say("started")
        time.sleep(60)
        return True
    sys.exit(run_process(url, "work", syncer))
    """)
    read_until(process, "started")
    process.send_signal(signal.SIGTERM)
    read_until(process, "Received signal")
    process.send_signal(signal.SIGTERM)

    read_the_rest(process)

    assert process.returncode == -signal.SIGTERM
    wait_until(lambda: broker.depth() == 1)


def test_a_missing_queue_is_one_line_and_exit_code_2(broker: Broker, start: Start) -> None:
    process = start("""
    sys.exit(run_process(url, "nowhere", lambda message: True))
    """)

    out = read_the_rest(process)

    assert process.returncode == 2
    assert "queue nowhere does not exist; create it first" in out
    assert "Traceback" not in out


def test_a_queue_that_goes_away_later_ends_it_with_exit_code_1(broker: Broker, start: Start) -> None:
    """The process has worked: a supervisor must not assume that it could not start."""
    broker.put(1)
    process = start("""
    async def syncer(message):
        say("started")
        return True
    sys.exit(run_process(url, "work", syncer, max_reconnects=1))
    """)
    read_until(process, "started")
    broker.channel.queue_delete("work")

    out = read_the_rest(process)

    assert process.returncode == 1, out
    assert "the process ends with exit code 1: QueueMissingError" in out


@pytest.mark.spec("MW-008.5")
def test_counters_start_at_zero_with_the_process(broker: Broker, start: Start) -> None:
    body = """
    from conquiet.rabbit import sync_queue
    def syncer(message):
        import os, signal
        os.kill(os.getpid(), signal.SIGTERM)
        return True
    say("returned", sync_queue(url, "work", syncer).as_dict()["ack"])
    """
    for _ in range(2):
        broker.put(1)
        assert "returned 1" in read_the_rest(start(body))


def test_kill_9_loses_nothing(broker: Broker, start: Start, amqp_url: str) -> None:
    broker.put(4)
    process = start("""
    def syncer(message):
        say("started")
        time.sleep(60)
        return True
    sys.exit(run_process(url, "work", syncer, concurrency=2))
    """)
    read_until(process, "started")
    process.kill()
    process.wait()

    wait_until(lambda: broker.depth() == 4)


@pytest.mark.spec("MW-002.7", "MW-002.8", "MW-002.3", "MW-005.3", "MW-008.2", "MW-008.3")
def test_sync_queue_has_the_schemas_and_the_settlements_of_the_seed(broker: Broker, start: Start) -> None:
    """On a queue without a dead-letter exchange, where ``RabbitConsumer`` would handle the one and keep the others."""
    deaths = pika.BasicProperties(headers={"x-death": [{"count": 4, "queue": "work", "reason": "rejected"}]})
    broker.channel.basic_publish("", "work", b'{"order": 1}')
    broker.channel.basic_publish("", "work", b'{"schema": "proca:action:2", "actionId": 7}', deaths)
    broker.put(1)
    process = start("""
    from conquiet.rabbit import sync_queue
    def syncer(message):
        say("syncer", message["actionId"])
        return True
    count = sync_queue(url, "work", syncer, max_retries=3)
    say("returned", count.ack, count.requeued, count.dead_lettered, count.dropped)
    """)
    seen = ""
    while "syncer 0" not in seen or "dead-lettered: unknown schema" not in seen:  # the broker chooses which comes first
        seen += read_until(process, "")
    process.send_signal(signal.SIGTERM)

    out = seen + read_the_rest(process)

    assert "returned 1 1 1 1" in out, out
    assert out.count("syncer ") == 1
    assert "syncer 0" in out
    assert broker.depth() == 0
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
        broker.channel.queue_declare("work.dead", passive=True)
