import asyncio
import threading

import pytest

from conquiet.core.lifecycle import AsyncLifecycle, BlockingLifecycle, Health, Lifecycle, Status
from conquiet.errors import LifecycleError


def test_a_life_goes_from_new_to_stopped() -> None:
    life = Lifecycle("engine")
    seen = [life.status]
    for step in (life.start, life.stop, life.finish):
        step()
        seen.append(life.status)

    assert seen == [Status.NEW, Status.RUNNING, Status.STOPPING, Status.STOPPED]


def test_a_life_happens_once() -> None:
    life = Lifecycle("engine")
    life.start()
    with pytest.raises(LifecycleError, match="engine cannot start: it is running"):
        life.start()
    life.finish()
    with pytest.raises(LifecycleError, match="it is stopped"):
        life.start()


def test_a_stop_before_the_start_means_it_never_starts() -> None:
    life = Lifecycle("engine")
    life.stop()

    assert life.is_stopping
    with pytest.raises(LifecycleError):
        life.start()


def test_stopping_twice_changes_nothing() -> None:
    life = Lifecycle("engine")
    life.start()
    life.stop()
    seen = [life.status]
    life.finish()
    life.stop()
    seen.append(life.status)

    assert seen == [Status.STOPPING, Status.STOPPED]


def test_only_the_second_request_forces() -> None:
    """A worker that ends because of an error or a close() is not forced by the first stop() of its owner."""
    life = Lifecycle("engine")
    life.start()
    life.stop()

    assert [life.request_stop(), life.request_stop(), life.request_stop()] == [False, True, True]
    assert life.is_forced


@pytest.mark.parametrize(
    ("status", "reason"), [(Status.NEW, "not started"), (Status.STOPPING, "stopping"), (Status.STOPPED, "stopped")]
)
def test_a_stopped_worker_is_not_ready_and_gives_a_reason(status: Status, reason: str) -> None:
    health = Health(status=status, reason="no server")

    assert (health.ready, health.reason) == (False, reason)


def test_a_running_worker_is_ready_unless_there_is_a_reason() -> None:
    assert Health(status=Status.RUNNING).ready
    assert not Health(status=Status.RUNNING, reason="no server").ready


def test_a_thread_cannot_wait_for_its_own_end() -> None:
    life = BlockingLifecycle("worker")
    assert life.wait_ended()
    life.start()

    assert not life.wait_ended()
    life.finish()
    assert life.wait_ended()


async def test_the_end_of_a_run_in_another_thread_is_noticed() -> None:
    """Its event loop cannot wake ours by setting an ``asyncio.Event``: this loop would sleep on."""
    life = AsyncLifecycle("this worker")
    life.start()
    asyncio.get_running_loop().call_soon(threading.Timer(0.05, life.finish).start)

    async with asyncio.timeout(30):
        await asyncio.gather(life.wait_ended(), life.wait_ended())

    assert life.status is Status.STOPPED
    await life.wait_ended()
