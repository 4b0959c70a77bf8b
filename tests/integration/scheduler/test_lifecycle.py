"""The lifecycle that all workers share: run, stop, health, close."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from conquiet.errors import ConfigurationError
from conquiet.scheduler import Every
from conquiet.testing import wait_until_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.scheduler.conftest import Stage

    from conquiet.core.lifecycle import Health, Worker
    from conquiet.testing import FaultProxy


class SetClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def monotonic(self) -> float:
        return self.seconds

    def time(self) -> float:
        return self.seconds


async def test_a_scheduler_is_a_worker(stage: Stage) -> None:
    worker: Worker = stage.real(stage.entry())
    health: Health = worker.health()

    assert (health.ready, health.reason, worker.abandoned) == (False, "not started", 0)


async def test_health_follows_the_lifecycle_and_never_raises(stage: Stage) -> None:
    host = stage.real(stage.entry(when=Every(86_400)))
    running = asyncio.create_task(host.run())
    await asyncio.sleep(0)  # one turn of the loop: it runs and has sent nothing yet
    assert host.health().reason == "starting"

    await wait_until_async(lambda: host.health().ready)
    assert host.health().reason == ""

    host.stop()
    assert (host.health().ready, host.health().reason) == (False, "stopping")
    await asyncio.wait_for(running, 60)
    assert (host.health().ready, host.health().reason) == (False, "stopped")
    await host.close()
    await host.close()
    assert host.health().reason == "stopped"


async def test_health_expires_when_no_round_succeeds(stage: Stage) -> None:
    clock = SetClock()
    host = stage.real(stage.entry(when=Every(86_400)), clock=clock, poll_s=1.0)
    stage.run(host)
    await wait_until_async(lambda: host.health().ready)

    clock.seconds += 10
    expired = host.health()

    assert (expired.ready, expired.reason) == (False, "no round has succeeded for 10 s")
    await wait_until_async(lambda: host.health().ready)  # the next round


async def test_a_second_stop_interrupts_a_round_without_reply(
    stage: Stage, fault_proxy: Callable[[str], FaultProxy], caplog: pytest.LogCaptureFixture
) -> None:
    proxy = fault_proxy(stage.url)
    host = stage.real(stage.entry(when=Every(86_400)), url=proxy.url_for(stage.url), poll_s=0.1)
    running = stage.run(host)
    await wait_until_async(lambda: host.health().ready)
    proxy.stall_next_reply()
    await asyncio.to_thread(proxy.wait_for_fault)

    host.stop()
    done, _ = await asyncio.wait([running], timeout=0.3)
    assert not done, "the first stop waits for the running round"
    host.stop()

    await asyncio.wait_for(running, 60)
    assert "scheduler stopped by force; its last round was interrupted" in caplog.messages


async def test_leaving_the_block_after_a_stop_does_not_force(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async with stage.real(stage.entry(when=Every(0.1))) as host:
        await stage.wait_for(1)
        host.stop()

    assert caplog.messages == []


async def test_a_cancelled_run_is_cancelled_and_ends_its_round(stage: Stage) -> None:
    host = stage.real(stage.entry(when=Every(86_400)))
    running = asyncio.create_task(host.run())
    await wait_until_async(lambda: host.health().ready)

    running.cancel()
    done, _ = await asyncio.wait([running], timeout=60)

    assert done
    assert running.cancelled()
    assert host.health().reason == "stopped"


async def test_an_event_of_threads_as_stop_event_is_refused(stage: Stage) -> None:
    """Waiting for it would block the event loop without end."""
    event: Any = threading.Event()
    event.set()

    with pytest.raises(ConfigurationError, match=r"must be an asyncio\.Event"):
        await asyncio.wait_for(stage.real(stage.entry()).run(event), 10)
