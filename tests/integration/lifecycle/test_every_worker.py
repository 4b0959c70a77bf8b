"""The lifecycle that every worker has: run, stop, health, close, ``async with`` or ``with``."""

import asyncio
import threading
from typing import Any

import pytest
from tests.integration.lifecycle.conftest import ALL, RABBIT, WITH_HANDLERS, Makers, Subject

from conquiet.core.lifecycle import Status, Worker
from conquiet.errors import LifecycleError
from conquiet.testing import wait_until, wait_until_async

SOON_S = 8.0
"""Less than any timeout of a worker for a server that does not reply: 10 s."""

every_worker = pytest.mark.parametrize("subject", ALL, indirect=True)
every_worker_with_handlers = pytest.mark.parametrize("subject", WITH_HANDLERS, indirect=True)


def reported(subject: Subject) -> tuple[Status, bool, str]:
    health = subject.worker.health()
    return health.status, health.ready, health.reason


async def call_run(subject: Subject) -> Any:
    return await (subject.worker.run() if subject.is_async else asyncio.to_thread(subject.worker.run))


@every_worker
async def test_it_works_until_it_is_stopped_and_only_once(subject: Subject) -> None:
    assert isinstance(subject.worker, Worker)
    assert reported(subject) == (Status.NEW, False, "not started")
    running = subject.start()
    await subject.until_ready()
    assert reported(subject) == (Status.RUNNING, True, "")
    with pytest.raises(LifecycleError):
        await call_run(subject)

    subject.worker.stop()
    await asyncio.wait_for(running, 60)

    assert reported(subject) == (Status.STOPPED, False, "stopped")
    with pytest.raises(LifecycleError):
        await call_run(subject)
    await subject.close()
    await subject.close()
    assert reported(subject) == (Status.STOPPED, False, "stopped")
    assert subject.worker.abandoned == 0


@every_worker
async def test_it_refuses_to_run_after_a_stop(subject: Subject) -> None:
    subject.worker.stop()
    subject.worker.stop()

    assert reported(subject) == (Status.STOPPED, False, "stopped")
    with pytest.raises(LifecycleError):
        await call_run(subject)
    await subject.close()
    await subject.close()


@every_worker
async def test_it_can_be_closed_before_its_start(subject: Subject) -> None:
    await subject.close()
    await subject.close()

    assert not subject.worker.health().ready


@every_worker
async def test_close_stops_it_and_waits_for_the_end(subject: Subject) -> None:
    running = subject.start()
    await subject.until_ready()

    await asyncio.wait_for(subject.close(), 60)

    assert reported(subject) == (Status.STOPPED, False, "stopped")
    await asyncio.wait_for(running, SOON_S)
    await subject.close()


@pytest.mark.parametrize("subject", ["consumer", RABBIT, "probe"], indirect=True)
async def test_close_waits_for_a_worker_in_another_thread(subject: Subject) -> None:
    """A program without asyncio runs an asyncio worker in a thread, with an event loop of the thread."""
    ended: list[object] = []
    thread = threading.Thread(target=lambda: ended.append(asyncio.run(subject.worker.run())), daemon=True)
    thread.start()
    await subject.until_ready()

    await asyncio.wait_for(subject.close(), 60)

    assert reported(subject) == (Status.STOPPED, False, "stopped")
    await asyncio.to_thread(thread.join, SOON_S)
    assert len(ended) == 1


@every_worker
async def test_leaving_the_block_stops_and_closes(subject: Subject) -> None:
    if subject.is_async:
        async with subject.worker as entered:
            await subject.until_ready()
    else:
        await asyncio.to_thread(enter_and_leave, subject)
        entered = subject.worker

    assert entered is subject.worker
    assert reported(subject) == (Status.STOPPED, False, "stopped")


@pytest.mark.parametrize("subject", [*WITH_HANDLERS, "scheduler", "probe"], indirect=True)
async def test_entering_a_running_worker_is_refused_and_does_not_stop_it(subject: Subject) -> None:
    running = subject.start()
    await subject.until_ready()

    with pytest.raises(LifecycleError):
        async with subject.worker:
            pytest.fail("entered")

    assert reported(subject) == (Status.RUNNING, True, "")
    await subject.close()
    await asyncio.wait_for(running, 60)


def enter_and_leave(subject: Subject) -> None:
    with subject.worker as entered:
        if entered.health().status is Status.NEW:  # a Purger has started its thread
            threading.Thread(target=entered.run, daemon=True).start()
        wait_until(lambda: entered.health().ready)


@every_worker_with_handlers
async def test_a_cancelled_block_is_left_only_once_its_worker_has_ended(subject: Subject) -> None:
    """Its handlers use the resources of the surrounding blocks, which close next."""

    async def enter_and_leave() -> None:
        async with subject.worker:
            await asyncio.to_thread(subject.feed)
            await wait_until_async(subject.hold.begun.is_set)

    leaving = asyncio.create_task(enter_and_leave())
    await wait_until_async(lambda: subject.worker.health().status is Status.STOPPING)
    leaving.cancel()
    asyncio.get_running_loop().call_later(0.3, subject.hold.released.set)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(leaving, 60)

    assert reported(subject) == (Status.STOPPED, False, "stopped")


@every_worker
async def test_a_second_stop_ends_waits_for_servers_that_are_silent(subject: Subject) -> None:
    running = subject.start()
    await subject.until_ready()
    await subject.stall()

    subject.worker.stop()
    subject.worker.stop()

    await asyncio.wait_for(running, SOON_S)
    assert reported(subject) == (Status.STOPPED, False, "stopped")
    for proxy in subject.proxies:
        await asyncio.to_thread(proxy.resume)
    await subject.close()


@pytest.mark.parametrize("lost", [False, True], ids=["at the start", "after a loss"])
@pytest.mark.parametrize("subject", [one for one in ALL if one != "queue_worker"], indirect=True)
async def test_a_second_stop_ends_the_opening_of_connections(subject: Subject, *, lost: bool) -> None:
    """A server that accepts and never replies: psycopg waits two minutes for it, PyMySQL without a limit."""
    await assert_opening_ends(subject, lost=lost)


@pytest.mark.parametrize("kind", ["relay", "purger"])
async def test_a_second_stop_ends_the_opening_of_a_connection_to_mysql(makers: Makers, db_url: str, kind: str) -> None:
    assert db_url
    await assert_opening_ends(getattr(makers, kind)("db_url"), lost=False)


async def assert_opening_ends(subject: Subject, *, lost: bool) -> None:
    running = subject.start() if lost else None
    if lost:
        await subject.until_ready()
    for proxy in subject.proxies:
        await asyncio.to_thread(proxy.stall)
    awaited = {proxy: proxy.counters.connections for proxy in subject.polled or subject.proxies}
    for proxy in subject.proxies if lost else []:
        await asyncio.to_thread(proxy.disconnect)
    running = running or subject.start()
    await wait_until_async(
        lambda: all(proxy.counters.connections > count for proxy, count in awaited.items()), message="it connects"
    )

    subject.worker.stop()
    subject.worker.stop()

    await asyncio.wait_for(running, SOON_S)
    assert reported(subject) == (Status.STOPPED, False, "stopped")
    for proxy in subject.proxies:
        await asyncio.to_thread(proxy.resume)
    await subject.close()


@every_worker_with_handlers
async def test_a_stop_lets_a_handler_finish(subject: Subject) -> None:
    running = await subject.start_handling()

    subject.worker.stop()
    done, _ = await asyncio.wait([running], timeout=0.3)
    assert not done, "the handler runs"
    assert reported(subject) == (Status.STOPPING, False, "stopping")
    subject.hold.released.set()
    await asyncio.wait_for(running, 60)

    assert subject.hold.ended == ["async"]
    assert await asyncio.to_thread(subject.left) == 0
    assert subject.worker.abandoned == 0
    assert subject.worker.health().handled == 1
    await subject.close()


@every_worker_with_handlers
async def test_a_second_stop_cancels_a_handler_and_keeps_its_message(subject: Subject) -> None:
    running = await subject.start_handling()

    subject.worker.stop()
    subject.worker.stop()
    await asyncio.wait_for(running, SOON_S)

    assert subject.hold.ended == []
    assert subject.worker.abandoned == 1
    await wait_until_async(lambda: subject.left() == 1, message="nothing is acknowledged")
    await subject.close()


@every_worker_with_handlers
async def test_the_first_stop_after_close_does_not_force(subject: Subject) -> None:
    running = await subject.start_handling()

    closing = asyncio.create_task(subject.close())
    await wait_until_async(lambda: subject.worker.health().status is Status.STOPPING)
    subject.worker.stop()
    done, _ = await asyncio.wait([running], timeout=0.3)
    assert not done, "the handler runs"
    subject.hold.released.set()

    await asyncio.wait_for(closing, 60)
    await running
    assert subject.hold.ended == ["async"]


@pytest.mark.parametrize("subject", [*WITH_HANDLERS, "queue_worker"], indirect=True)
async def test_a_handler_may_close_its_worker(subject: Subject) -> None:
    """It cannot wait for its own end, and must not wait for ever."""
    subject.hold.instead = subject.worker.close
    running = subject.start()
    await subject.until_ready()
    await asyncio.to_thread(subject.feed)

    await asyncio.wait_for(running, 60)

    assert len(subject.hold.ended) == 1
    assert await asyncio.to_thread(subject.left) == 0
    await subject.close()


@pytest.mark.parametrize("subject", ["queue_worker"], indirect=True)
async def test_a_handler_in_the_callers_thread_finishes_though_the_stop_is_forced(subject: Subject) -> None:
    """It cannot be interrupted: it commits, and its message is acknowledged on a new connection."""
    running = await subject.start_handling()

    subject.worker.stop()
    subject.worker.stop()
    subject.hold.released.set()
    await asyncio.wait_for(running, 60)

    assert subject.hold.ended == ["thread"]
    assert await asyncio.to_thread(subject.left) == 0
    await subject.close()


@pytest.mark.parametrize("kind", ["relay", "purger"])
async def test_a_second_stop_aborts_a_statement_of_mysql(makers: Makers, db_url: str, kind: str) -> None:
    assert db_url
    subject: Subject = getattr(makers, kind)("db_url")
    running = subject.start()
    await subject.until_ready()
    await subject.stall()

    subject.worker.stop()
    done, _ = await asyncio.wait([running], timeout=0.5)
    assert not done, "the first stop waits for the statement"
    subject.worker.stop()

    await asyncio.wait_for(running, SOON_S)
    await asyncio.to_thread(subject.proxies[0].resume)
    await subject.close()
