import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest

from conquiet.core.batching import BatchSettings
from conquiet.rabbit.batch_workers import BatchWorkers
from conquiet.rabbit.decode import Unreadable
from conquiet.rabbit.delivery import Delivery
from conquiet.rabbit.message_schemas import SchemaRegistry
from conquiet.rabbit.pipeline import Pipeline
from conquiet.rabbit.syncer import DONE
from conquiet.rabbit.workers import TaskWorkers, ThreadWorkers
from conquiet.testing import wait_until_async

TENANT: ContextVar[str] = ContextVar("tenant", default="none")


def never(_: Any) -> bool:
    raise AssertionError


class Panic(BaseException):
    """A library written in Rust may raise such an exception: ``except Exception`` does not catch pydantic's."""


@pytest.mark.parametrize("kind", [TaskWorkers, ThreadWorkers])
async def test_a_model_that_panics_is_reported_and_no_worker_dies_of_it(
    kind: Callable[..., TaskWorkers | ThreadWorkers],
) -> None:
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
async def test_an_unreadable_body_never_reaches_the_syncer(kind: Callable[..., TaskWorkers | ThreadWorkers]) -> None:
    finished: asyncio.Queue[Any] = asyncio.Queue()
    pipeline = Pipeline(SchemaRegistry(built_in=False).register_default(), None, None, 1_000)
    workers = kind(never, pipeline, 1, lambda _delivery, verdict: finished.put_nowait(verdict))
    workers.start()
    session: Any = SimpleNamespace(is_open=True, flush=lambda: None)

    workers.submit([Delivery(session, 1, False, b"", b"not json")])  # noqa: FBT003
    async with asyncio.timeout(60):
        assert isinstance(await finished.get(), Unreadable)
    assert await workers.close() == 0


async def test_a_plain_batch_syncer_that_raises_stop_iteration_is_reported() -> None:
    """A future cannot hold this error: its batch would wait for a result without end."""

    def exhausted(_: list[Any]) -> bool:
        return bool(next(iter(())))

    finished: asyncio.Queue[Any] = asyncio.Queue()
    report: Callable[[Any, Any], None] = lambda _delivery, verdict: finished.put_nowait(verdict)  # noqa: E731
    workers = BatchWorkers(exhausted, Pipeline(), 1, report, BatchSettings(2))
    workers.start()
    session: Any = SimpleNamespace(is_open=True, flush=lambda: None, queue="work")

    workers.submit([Delivery(session, tag, False, b"", b"{}") for tag in (1, 2)])  # noqa: FBT003
    async with asyncio.timeout(20):
        assert [(await finished.get()).reason for _ in range(2)] == ["the syncer raised StopIteration"] * 2
    assert await workers.close() == 0


@pytest.mark.parametrize("when", ["at once", "late", "woken"])
async def test_a_late_cancellation_costs_no_worker_and_no_other_message(when: str) -> None:
    """From a watchdog that was not cancelled in time. Without a worker, messages would wait unsettled."""
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
            workers._pool._workers[0].cancel()
        async with asyncio.timeout(60):
            assert [await finished.get() for _ in several] == [DONE] * len(several)
        await asyncio.sleep(0)
    assert await workers.close() == 0


async def test_workers_end_with_their_event_loop() -> None:
    pipeline = Pipeline(SchemaRegistry(built_in=False).register_default(), None, None, 1_000)

    async def start() -> TaskWorkers:
        untouched: Any = never
        workers = TaskWorkers(untouched, pipeline, 2, lambda _delivery, _verdict: None)
        workers.start()
        await asyncio.sleep(0)
        return workers

    workers = await asyncio.create_task(start())
    for task in workers._pool._workers:  # as an event loop does that ends
        task.cancel()
    _, left = await asyncio.wait(workers._pool._workers, timeout=10)
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
async def test_after_halt_nothing_starts_even_before_the_loop_runs(
    kind: Callable[..., TaskWorkers | ThreadWorkers],
) -> None:
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
        await wait_until_async(lambda: finished == [1])
        await workers.drained()

    assert workers.take_unstarted() == [second]
    assert begun.empty()
    assert await workers.close() == 0


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("kind", [TaskWorkers, ThreadWorkers])
async def test_a_context_variable_does_not_reach_the_next_message(
    kind: Callable[..., TaskWorkers | ThreadWorkers], *, waits: bool
) -> None:
    seen: list[str] = []
    finished: asyncio.Queue[object] = asyncio.Queue()

    def plain(_: object) -> bool:
        seen.append(TENANT.get())
        TENANT.set("first")
        return True

    async def coroutine(message: object) -> bool:
        if waits:
            await asyncio.sleep(0)
        result = plain(message)
        if waits:
            await asyncio.sleep(0)
        return result

    syncer: Any = coroutine if kind is TaskWorkers else plain
    workers = kind(syncer, Pipeline(), 1, lambda _delivery, report: finished.put_nowait(report))
    workers.start()
    session: Any = SimpleNamespace(is_open=True, flush=lambda: None)

    workers.submit([Delivery(session, tag, False, b"", b"{}") for tag in (1, 2, 3)])  # noqa: FBT003
    async with asyncio.timeout(60):
        assert [await finished.get() for _ in range(3)] == [DONE] * 3
    await workers.close()

    assert seen == ["none"] * 3


async def test_acknowledgements_of_one_iteration_are_sent_together() -> None:
    """Each write costs a system call. Only the last message in flight does not wait for the scheduled flush."""
    flushed: list[int] = []
    finished: list[Any] = []

    async def syncer(_: Any) -> bool:
        await asyncio.sleep(0)
        return True

    pipeline = Pipeline(SchemaRegistry(built_in=False).register_default(), None, None, 1_000)
    workers = TaskWorkers(syncer, pipeline, 8, lambda _delivery, verdict: finished.append(verdict))
    workers.start()
    session: Any = SimpleNamespace(is_open=True, flush=lambda: flushed.append(len(finished)))

    workers.submit([Delivery(session, tag, False, b"", b"{}") for tag in range(8)])  # noqa: FBT003
    await wait_until_async(lambda: len(finished) == 8)
    assert flushed == [8]
    assert await workers.close() == 0
