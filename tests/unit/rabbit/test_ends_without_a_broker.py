"""Ends that need no broker: before the start, in the moment of the start, and of the threads."""

import asyncio
import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from conquiet.errors import LifecycleError
from conquiet.kernel.lifecycle import Lifecycle, Status
from conquiet.rabbit import RabbitConsumer, runner, sync_queue
from conquiet.rabbit.decode import Unreadable
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.pipeline import Pipeline
from conquiet.rabbit.schema import SchemaRegistry
from conquiet.rabbit.syncer import DONE
from conquiet.rabbit.workers import TaskWorkers, ThreadWorkers
from conquiet.testing import wait_until_async

NOWHERE = "amqp://127.0.0.1:1"


def never(_: Any) -> bool:
    raise AssertionError


async def test_one_that_was_stopped_before_its_start_is_closed_and_over() -> None:
    consumer = RabbitConsumer(NOWHERE, "q", never)
    consumer.stop()

    async with asyncio.timeout(60):
        await consumer.close()
        await consumer.close()
        await consumer.ready()


def test_a_signal_in_the_moment_of_the_start_is_a_good_end(monkeypatch: pytest.MonkeyPatch) -> None:
    run = runner._run

    async def interrupted(consumer: RabbitConsumer) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return await run(consumer)

    monkeypatch.setattr(runner, "_run", interrupted)

    assert sync_queue(NOWHERE, "q", never).ack == 0


async def test_a_stop_between_two_steps_of_the_start_is_heard() -> None:
    """There is no event loop yet that it could wake: with a broker the consumer would go on for ever."""
    consumer = RabbitConsumer(NOWHERE, "q", never)

    class Interrupted(Lifecycle):
        def start(self) -> None:
            super().start()
            consumer.stop()

    consumer._life = Interrupted("this consumer")

    async with asyncio.timeout(60):
        assert (await consumer.run()).ack == 0
    assert consumer.status is Status.STOPPED


def test_a_stop_that_nobody_signalled_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    run = runner._run

    async def stopped(consumer: RabbitConsumer) -> Any:
        consumer.stop()
        return await run(consumer)

    monkeypatch.setattr(runner, "_run", stopped)

    with pytest.raises(LifecycleError):
        sync_queue(NOWHERE, "q", never)


async def test_a_stop_while_nobody_answers_is_a_good_end_at_once() -> None:
    connected = asyncio.Event()

    async def silence(reader: Any, writer: Any) -> None:
        connected.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silence, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        consumer = RabbitConsumer(f"amqp://127.0.0.1:{port}", "q", never, connect_timeout_s=600.0)
        running = asyncio.create_task(consumer.run())
        await connected.wait()

        async with asyncio.timeout(60):
            await consumer.close()
            assert consumer.status is Status.STOPPED
            count = await running

    assert count.ack == 0


async def test_a_stop_while_the_management_api_does_not_answer_is_a_good_end_at_once() -> None:
    asked: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    before = set(threading.enumerate())

    async with await asyncio.start_server(lambda _, writer: asked.put_nowait(writer), "127.0.0.1", 0) as listening:
        nobody = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        consumer = RabbitConsumer(NOWHERE, "q", never, management_url=nobody)
        running = asyncio.create_task(consumer.run())
        writer = await asked.get()
        consumer.stop()

        async with asyncio.timeout(5):  # half of what the question itself may take
            assert (await running).ack == 0
        writer.close()
        await writer.wait_closed()
    for thread in set(threading.enumerate()) - before:
        if thread.name == "conquiet-rabbit-question":
            await asyncio.to_thread(thread.join, 30)


class Panic(BaseException):
    """What a library written in Rust raises when it breaks: pydantic's is none that ``except Exception`` catches."""


@pytest.mark.parametrize("kind", [TaskWorkers, ThreadWorkers])
async def test_a_model_that_panics_is_reported_and_no_worker_dies_of_it(kind: Any) -> None:
    def panics(_: Any) -> None:
        raise Panic

    finished: asyncio.Queue[Any] = asyncio.Queue()
    pipeline = Pipeline(SchemaRegistry(built_in=False).register_default(panics), None, None, 1_000)
    workers = kind(never, pipeline, 1, lambda _delivery, verdict: finished.put_nowait(verdict))
    workers.start()
    session: Any = SimpleNamespace(is_open=True, flush=lambda: None)

    workers.submit([Delivery(session, 1, False, b"", b"{}")])  # noqa: FBT003
    async with asyncio.timeout(60):
        assert (await finished.get()).reason == "preparing the message raised Panic"
    assert await workers.close() == 0


@pytest.mark.parametrize("kind", [TaskWorkers, ThreadWorkers])
async def test_what_cannot_be_read_is_reported_as_such_and_the_syncer_never_sees_it(kind: Any) -> None:
    finished: asyncio.Queue[Any] = asyncio.Queue()
    pipeline = Pipeline(SchemaRegistry(built_in=False).register_default(), None, None, 1_000)
    workers = kind(never, pipeline, 1, lambda _delivery, verdict: finished.put_nowait(verdict))
    workers.start()
    session: Any = SimpleNamespace(is_open=True, flush=lambda: None)

    workers.submit([Delivery(session, 1, False, b"", b"not json")])  # noqa: FBT003
    async with asyncio.timeout(60):
        assert isinstance(await finished.get(), Unreadable)
    assert await workers.close() == 0


@pytest.mark.parametrize("when", ["at once", "late", "woken"])
async def test_a_cancellation_that_outlives_its_syncer_costs_neither_the_worker_nor_another_message(when: str) -> None:
    """From a watchdog that was not called off in time. Without a worker messages would wait for ever, unsettled."""
    finished: asyncio.Queue[Any] = asyncio.Queue()

    async def syncer(message: Any) -> bool:
        task = asyncio.current_task()
        assert task is not None
        if message["n"] == 0 and when == "at once":
            task.cancel()
        elif message["n"] == 0 and when == "late":
            asyncio.get_running_loop().call_soon(task.cancel)
        else:
            await asyncio.sleep(0)
        return True

    pipeline = Pipeline(SchemaRegistry(built_in=False).register_default(), None, None, 1_000)
    workers = TaskWorkers(syncer, pipeline, 1, lambda _delivery, verdict: finished.put_nowait(verdict))
    workers.start()
    await asyncio.sleep(0)
    session: Any = SimpleNamespace(is_open=True, flush=lambda: None)

    for several in ((0,), (1, 2), (3, 0, 4) if when == "at once" else ()):
        workers.submit([Delivery(session, n + 1, False, b"", b'{"n": %d}' % n) for n in several])  # noqa: FBT003
        if when == "woken":
            workers._tasks[0].cancel()
        async with asyncio.timeout(60):
            assert [await finished.get() for _ in several] == [DONE] * len(several)
        await asyncio.sleep(0)
    assert await workers.close() == 0


async def test_workers_that_nobody_closed_end_with_their_event_loop() -> None:
    pipeline = Pipeline(SchemaRegistry(built_in=False).register_default(), None, None, 1_000)

    async def start() -> TaskWorkers:
        untouched: Any = never
        workers = TaskWorkers(untouched, pipeline, 2, lambda _delivery, _verdict: None)
        workers.start()
        await asyncio.sleep(0)
        return workers

    workers = await asyncio.create_task(start())
    for task in workers._tasks:  # as an event loop does that ends
        task.cancel()
    _, left = await asyncio.wait(workers._tasks, timeout=10)
    assert await workers.close() == 0

    assert not left


async def test_a_late_stop_leaves_the_threads_their_marks_to_end_by() -> None:
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def busy(_: Any) -> bool:
        begun.release()
        go_on.wait()
        return True

    pipeline = Pipeline(SchemaRegistry(built_in=False).register_default(), None, None, 1_000)
    workers = ThreadWorkers(busy, pipeline, 2, lambda _delivery, _verdict: None)
    before = set(threading.enumerate())
    workers.start()
    threads = set(threading.enumerate()) - before
    session: Any = SimpleNamespace(is_open=True)
    workers.submit([Delivery(session, tag, False, b"", b"{}") for tag in (1, 2)])  # noqa: FBT003
    for _ in threads:
        await asyncio.to_thread(begun.acquire)

    await workers.close()
    assert workers.take_unstarted() == []
    go_on.set()
    for thread in threads:
        await asyncio.to_thread(thread.join, 30)

    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("kind", [TaskWorkers, ThreadWorkers])
async def test_after_halt_nothing_begins_though_the_loop_has_not_heard_of_the_stop(kind: Any) -> None:
    begun: asyncio.Queue[int] = asyncio.Queue()
    loop, go_on, go_on_in_thread = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    async def coroutine(message: Any) -> bool:
        begun.put_nowait(message["n"])
        return await go_on.wait()

    def plain(message: Any) -> bool:
        loop.call_soon_threadsafe(begun.put_nowait, message["n"])
        return go_on_in_thread.wait(60)

    finished: list[int] = []
    pipeline = Pipeline(SchemaRegistry(built_in=False).register_default(), None, None, 1_000)
    syncer: Any = coroutine if kind is TaskWorkers else plain
    workers = kind(syncer, pipeline, 1, lambda delivery, _verdict: finished.append(delivery.tag))
    workers.start()
    session: Any = SimpleNamespace(is_open=True, flush=lambda: None)
    first, second = (Delivery(session, tag, False, b"", b'{"n": %d}' % tag) for tag in (1, 2))  # noqa: FBT003
    workers.submit([first, second])
    async with asyncio.timeout(60):
        assert await begun.get() == 1

        workers.halt()
        go_on.set()
        go_on_in_thread.set()
        await wait_until_async(lambda: finished == [1] and not workers.running)

    assert workers.take_unstarted() == [second]
    assert begun.empty()
    assert await workers.close() == 0
