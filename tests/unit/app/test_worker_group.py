"""Several workers as one."""

import asyncio
import threading

import pytest

from conquiet.app.worker_group import WorkerGroup
from conquiet.core.lifecycle import Health, Status
from conquiet.errors import LifecycleError


class Looping:
    """An asyncio worker that ends when it is stopped, or with an error."""

    name = "looping"
    abandoned = 1

    def __init__(self, failure: Exception | None = None, *, ready: bool = True) -> None:
        self._failure = failure
        self._ready = ready
        self._stopped = asyncio.Event()
        self.stops = 0
        self.closed = False

    async def run(self) -> None:
        if self._failure is not None:
            raise self._failure
        await self._stopped.wait()

    def stop(self) -> None:
        self.stops += 1
        self._stopped.set()

    def health(self) -> Health:
        return Health(status=Status.RUNNING, reason="" if self._ready else "no server")

    async def close(self) -> None:
        self.closed = True


class Blocking:
    """A synchronous worker."""

    name = "blocking"
    abandoned = 0

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self.closed = False

    def run(self) -> None:
        assert self._stopped.wait(20)

    def stop(self) -> None:
        self._stopped.set()

    def health(self) -> Health:
        return Health(status=Status.RUNNING)

    def close(self) -> None:
        self.closed = True


async def test_the_first_failure_stops_the_others_and_is_raised() -> None:
    looping, blocking = Looping(), Blocking()
    group = WorkerGroup([looping, Looping(ValueError("first")), blocking])

    with pytest.raises(ValueError, match="first"):
        await asyncio.wait_for(group.run(), 20)
    assert looping.stops == 1


async def test_a_failure_during_the_stop_is_raised_after_all_have_ended() -> None:
    """Otherwise a worker that could not settle its last messages would look like a graceful end."""

    class FailingLate(Looping):
        async def run(self) -> None:
            await super().run()
            raise ValueError("not settled")

    late, blocking = FailingLate(), Blocking()
    group = WorkerGroup([late, blocking])
    running = asyncio.create_task(group.run())
    await asyncio.sleep(0)

    group.stop()

    with pytest.raises(ValueError, match="not settled"):
        await asyncio.wait_for(running, 20)
    assert late.stops == 1


async def test_stop_ends_all_and_a_second_one_reaches_them_too() -> None:
    looping, blocking = Looping(), Blocking()
    group = WorkerGroup([looping, blocking])
    running = asyncio.create_task(group.run())
    await asyncio.sleep(0)

    group.stop()
    group.stop()
    await asyncio.wait_for(running, 20)
    await group.close()

    assert looping.stops == 2
    assert looping.closed
    assert blocking.closed
    assert group.abandoned == 1


async def test_a_cancelled_group_leaves_no_thread_behind() -> None:
    blocking = Blocking()
    running = asyncio.create_task(WorkerGroup([Looping(), blocking]).run())
    await asyncio.sleep(0)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 20)
    assert blocking._stopped.is_set()


async def test_a_stop_before_the_start_runs_nothing() -> None:
    group = WorkerGroup([Looping(ValueError("not run"))])
    group.stop()

    with pytest.raises(LifecycleError):
        await group.run()


async def test_the_first_stop_after_a_failure_does_not_force() -> None:
    """The workers end already because another one failed: their handlers must not be aborted."""

    class Draining(Looping):
        async def run(self) -> None:
            await super().run()
            await drained.wait()

    drained = asyncio.Event()
    draining = Draining()
    group = WorkerGroup([draining, Looping(ValueError("first"))])
    running = asyncio.create_task(group.run())
    await draining._stopped.wait()

    group.stop()
    assert draining.stops == 1
    group.stop()
    assert draining.stops == 2

    drained.set()
    with pytest.raises(ValueError, match="first"):
        await asyncio.wait_for(running, 20)


async def test_a_worker_that_refuses_to_start_after_a_stop_is_no_failure() -> None:
    class Late(Looping):
        async def run(self) -> None:
            await self._stopped.wait()
            raise LifecycleError("it is stopped")

    group = WorkerGroup([Late()])
    running = asyncio.create_task(group.run())
    await asyncio.sleep(0)
    group.stop()

    await asyncio.wait_for(running, 20)


async def test_health_is_that_of_the_first_worker_that_is_not_ready() -> None:
    async with WorkerGroup([Blocking()]) as group:
        assert group.health() == Health(status=Status.RUNNING)
    group = WorkerGroup([Blocking(), Looping(ready=False)])
    running = asyncio.create_task(group.run())
    await asyncio.sleep(0)
    assert group.health() == Health(status=Status.RUNNING, reason="looping: no server")
    await group.close()
    await running


async def test_every_needed_worker_that_is_not_ready_is_named() -> None:
    """Of two faults the second is often the cause; and a purger that waits must not take a pod out of service."""
    waiting, other, background = Looping(ready=False), Looping(ready=False), Looping(ready=False)
    waiting.name, other.name, background.name = "shop", "relay", "purger"
    group = WorkerGroup([waiting, Blocking(), other], background=[background])
    running = asyncio.create_task(group.run())
    await asyncio.sleep(0)

    found = group.health()

    assert (found.ready, found.reason) == (False, "shop: no server; relay: no server")
    await group.close()
    await running
