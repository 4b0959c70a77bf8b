"""Signals are sent to real processes."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator

import pytest

from conquiet.errors import ConfigurationError
from conquiet.signals import TerminationHandlers, install_termination_handlers

BOTH = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    before = {signum: signal.getsignal(signum) for signum in BOTH}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def start(body: str) -> subprocess.Popen[str]:
    """A process that runs ``body`` and prints ``ready`` when signals may come."""
    head = """
    import logging, os, signal, sys, time
    from conquiet.signals import install_termination_handlers
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


@pytest.mark.spec("CQ-004.1", "CQ-004.2", "CQ-001.7", "CQ-004.3")
@pytest.mark.parametrize("signum", BOTH)
def test_either_signal_calls_back_once(signum: signal.Signals) -> None:
    calls: list[int] = []
    with install_termination_handlers(lambda: calls.append(1)) as handlers:
        assert handlers.received is None
        signal.raise_signal(signum)

        assert calls == [1]
        assert handlers.received is signum


@pytest.mark.spec("CQ-004.3")
@pytest.mark.parametrize("first", BOTH)
@pytest.mark.parametrize("second", BOTH)
def test_no_later_signal_of_either_kind_calls_back_again(first: signal.Signals, second: signal.Signals) -> None:
    calls: list[str] = []
    with install_termination_handlers(lambda: calls.append("stop"), lambda: calls.append("force")) as handlers:
        signal.raise_signal(first)
        signal.raise_signal(second)

        assert calls == ["stop", "force"]
        assert handlers.received is first


@pytest.mark.spec("CQ-004.3")
def test_of_two_loops_each_is_asked_once_whichever_signals_come() -> None:
    calls: list[str] = []
    with (
        install_termination_handlers(lambda: calls.append("outer")),
        install_termination_handlers(lambda: calls.append("inner"), lambda: calls.append("force")),
    ):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)

    assert sorted(calls) == ["force", "inner", "outer"]


@pytest.mark.spec("CQ-004.4")
@pytest.mark.parametrize("signum", BOTH)
def test_the_signal_is_logged_once_in_the_seeds_words(signum: signal.Signals) -> None:
    process = start(
        """
        class Said(logging.Handler):
            lines = []
            def emit(self, record):
                self.lines.append(f"{record.levelname} {record.getMessage()}")
        logging.basicConfig(level=logging.INFO, handlers=[Said()])
        install_termination_handlers(lambda: None)
        install_termination_handlers(lambda: None)
        print("ready", flush=True)
        while not Said.lines:
            time.sleep(0.01)
        time.sleep(0.2)  # a second line, if there were one, would come now
        print(Said.lines)
        """
    )
    ready(process)
    process.send_signal(signum)

    out, _ = process.communicate(timeout=60)
    assert out == f"['INFO Received signal {signum.value}, initiating graceful shutdown']\n"


def test_a_signal_while_the_logging_lock_is_held_does_not_hang() -> None:
    """The main thread may be inside logging when the signal comes: the handler must not want that lock."""
    process = start(
        """
        class Interrupted(logging.Handler):
            def emit(self, record):
                print("ready", flush=True)
                while not stopped:      # holding this handler's lock, as every emit does
                    time.sleep(0.01)
        stopped = []
        logging.getLogger().addHandler(Interrupted())
        logging.getLogger().setLevel(logging.INFO)
        install_termination_handlers(lambda: stopped.append(1))
        logging.info("go")
        print("done", flush=True)
        """
    )
    ready(process)
    process.send_signal(signal.SIGTERM)

    out, _ = process.communicate(timeout=60)
    assert "done" in out


@pytest.mark.parametrize("signum", BOTH)
def test_a_second_signal_forces_the_end(signum: signal.Signals) -> None:
    process = start(
        """
        install_termination_handlers(lambda: os.write(1, b"stopping\\n"))
        print("ready", flush=True)
        while True:
            time.sleep(0.05)
        """
    )
    ready(process)
    process.send_signal(signum)
    assert process.stdout is not None
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signum)

    process.communicate(timeout=60)
    assert process.returncode == -signum


def test_restoring_puts_back_what_was_there() -> None:
    mine: list[int] = []

    def earlier(signum: int, frame: object) -> None:
        mine.append(signum)

    signal.signal(signal.SIGTERM, earlier)
    install_termination_handlers(lambda: None).restore()
    signal.raise_signal(signal.SIGTERM)

    assert mine == [signal.SIGTERM]


def test_restoring_leaves_a_handler_alone_that_came_later() -> None:
    handlers = install_termination_handlers(lambda: None)

    def later(signum: int, frame: object) -> None: ...

    signal.signal(signal.SIGTERM, later)
    handlers.restore()

    assert signal.getsignal(signal.SIGTERM) is later


@pytest.mark.spec("CQ-004.3")
def test_two_loops_in_one_process_are_both_asked_to_stop() -> None:
    calls: list[str] = []
    with (
        install_termination_handlers(lambda: calls.append("first")),
        install_termination_handlers(lambda: calls.append("second")),
    ):
        signal.raise_signal(signal.SIGTERM)

    assert sorted(calls) == ["first", "second"]


def test_outside_the_main_thread_it_says_so_and_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    caught: list[Exception] = []

    def attempt() -> None:
        try:
            install_termination_handlers(lambda: None)
        except ConfigurationError as error:
            caught.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()

    assert "main thread only" in str(caught[0])
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.spec("CQ-004.5")
def test_without_being_asked_nothing_is_installed() -> None:
    """By importing, constructing and writing: a write is a direct call, without a further loop or thread."""
    code = (
        "import signal, conquiet, conquiet.config, conquiet.signals\n"
        "import conquiet.transactional, conquiet.processor, conquiet.rabbit, conquiet.runtime, conquiet.scheduler\n"
        "from conquiet import DbWriter, LockStrategy, QueueConsumer, RedisStreamsQueue\n"
        "from conquiet.config import DbConfig\n"
        "from sqlalchemy import create_engine\n"
        "DbWriter(create_engine('mysql+pymysql://'), DbConfig('orders'), LockStrategy.ROW)\n"
        "import threading\n"
        "from conquiet.db import DbOperation, DbOperationType, DbSession, insert_idempotent, retry_on_conflict\n"
        "engine = create_engine('sqlite://')\n"
        "with DbSession(engine) as session: session.execute('CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER)')\n"
        "writer = DbWriter(engine, DbConfig('t'))\n"
        "one, two, three = [DbOperation('t', DbOperationType.INSERT, n, {'id': n, 'n': 0}) for n in (1, 2, 3)]\n"
        "writer.execute(one); writer.execute_many([one, two, three]); writer.modify(1, lambda row: {'n': 1})\n"
        "retry_on_conflict(engine, lambda session: insert_idempotent(session, 't', 4, {}))\n"
        "print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,"
        " signal.getsignal(signal.SIGINT) is signal.default_int_handler, threading.active_count())"
    )
    # Coverage, when it measures child processes, installs its own handler.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS")}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout

    assert out == "True True 1\n"


def test_a_third_signal_ends_the_process_although_the_second_called_back() -> None:
    process = start(
        """
        install_termination_handlers(lambda: None, lambda: print("force", flush=True))
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        print("still here", flush=True)
        """
    )
    said, _ = process.communicate(timeout=60)

    assert said == "force\n"
    assert process.returncode == -signal.SIGTERM


@pytest.mark.spec("CQ-004.3")
def test_a_stopped_loop_is_not_stopped_again_through_a_later_one() -> None:
    calls: list[str] = []
    with install_termination_handlers(lambda: calls.append("outer")):
        signal.raise_signal(signal.SIGTERM)
        with install_termination_handlers(lambda: calls.append("inner")):
            signal.raise_signal(signal.SIGTERM)

    assert calls == ["outer", "inner"]


async def test_a_signal_wakes_an_event_loop_that_waits() -> None:
    """Delivered to another thread, the signal interrupts no call of the main one: only the loop's own socket does."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    timer = loop.call_later(30, lambda: None)  # the other way to wake the loop

    def stop() -> None:
        loop.call_soon_threadsafe(stopped.set)

    with install_termination_handlers(stop):
        thread = threading.Timer(0.3, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
        thread.start()  # the loop has long begun to wait when it ends
        await stopped.wait()

    assert loop.time() < timer.when()
    timer.cancel()
    thread.join()
    assert signal.set_wakeup_fd(-1) == -1


async def test_an_existing_wakeup_of_the_loop_is_kept() -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: None)
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    try:
        with install_termination_handlers(lambda: None):
            assert signal.set_wakeup_fd(before) == before
        assert signal.set_wakeup_fd(before) == before
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)


def test_handlers_installed_before_the_loop_are_attached_inside() -> None:
    woken: list[str] = []

    async def main(handlers: TerminationHandlers) -> None:
        handlers.attach_loop()
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        stops.append(lambda: loop.call_soon_threadsafe(stopped.set))
        too_late = loop.call_later(30, woken.append, "timer")
        thread = threading.Timer(0.3, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
        thread.start()  # the loop has long begun to wait when it ends
        await stopped.wait()
        too_late.cancel()
        thread.join()

    stops: list[Callable[[], object]] = []

    def stop() -> None:
        for one in stops:
            one()

    with install_termination_handlers(stop) as handlers:
        asyncio.run(main(handlers))

    assert woken == []
    assert signal.set_wakeup_fd(-1) == -1
