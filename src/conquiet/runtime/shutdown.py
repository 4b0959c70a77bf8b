"""Stop an engine in order: release, wait for handlers, acknowledge, close, report.

    pause the pool ──▶ release what was not started ──▶ grace for running handlers ──▶ cancel the rest
                                                                                            │
      report ◀── stop heartbeat and callbacks ◀── close connections ◀── last acknowledgements

The heartbeat extends leases until the last handler has ended, because handlers still own their messages in the grace
period.

Once the stop is forced, the last commands have half a second in total. Then the connections are aborted, which makes
every wait for the server fail.

See docs/decisions/0014.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import asdict
from typing import Any

from conquiet.core.log import FactLogger
from conquiet.runtime.assembly import AssembledEngine
from conquiet.runtime.health import StopReport
from conquiet.runtime.message import HandlerState, RuntimeMessage
from conquiet.runtime.parts import EngineParts

logger = FactLogger(__name__)

_CANCELLED_S = 5.0
"""Timeout for cancelled handlers and queued callbacks to end."""
_ACKS_S = 5.0
FORCED_STOP_TIMEOUT_S = 0.5
"""Timeout for these, and for the last commands to a server, once the stop is forced."""
_ABORT_AGAIN_S = 0.05


class Shutdown:
    """Stops the parts of one engine. Afterwards none of their tasks and threads is left.

    Args:
        parts: The parts that all others share. The topology is closed at the end.
        assembled: The parts that run. The heartbeat extends the leases until the handlers have ended.
        forced: Set to end the grace period.
    """

    def __init__(self, parts: EngineParts, assembled: AssembledEngine, forced: asyncio.Event) -> None:
        self._shards, self._pool, self._heartbeat = assembled.shards, assembled.pool, assembled.heartbeat
        self._leases = assembled.leases
        self._topology, self._stats, self._grace_s = parts.topology, parts.stats, parts.settings.grace_s
        self._forced = forced
        self._aborted = asyncio.Event()

    @property
    def end_timeout_s(self) -> float:
        """Timeout for parts that are ending."""
        return FORCED_STOP_TIMEOUT_S if self._forced.is_set() else _CANCELLED_S

    async def abort_when_forced(self) -> None:
        """Abort the connections ``FORCED_STOP_TIMEOUT_S`` after the stop is forced, repeatedly until cancelled."""
        await self._forced.wait()
        await asyncio.sleep(FORCED_STOP_TIMEOUT_S)
        self._aborted.set()
        while True:
            for shard in self._shards:
                shard.abort()
            await asyncio.sleep(_ABORT_AGAIN_S)

    async def run(self) -> StopReport:
        """Run all steps. The caller has stopped the fetchers."""
        self._pool.pause()
        unstarted = self._pool.drain_queue()
        released = await self._leases.release(unstarted)
        await _either(self._pool.wait_idle(), self._forced, timeout_s=self._grace_s)
        cancelled = self._pool.cancel_running()
        if cancelled:
            await _either(self._pool.wait_idle(), self._aborted, timeout_s=_CANCELLED_S)
        still_running = await self._pool.close(timeout_s=self.end_timeout_s)
        for message in self._pool.running:
            # Its handler continues, but its lease is not extended any more: its result does not count as a success.
            if not message.has_ended:
                message.lose()
        unacknowledged = await self._flush_and_close()
        await self._heartbeat.stop(timeout_s=self.end_timeout_s)
        await self._topology.close()
        for stats in self._stats.values():
            stats.flush(0)  # nothing is in flight here any more
        report = StopReport(
            succeeded=sum(stats.succeeded for stats in self._stats.values()),
            failed=sum(stats.failed for stats in self._stats.values()),
            released=released,
            unreleased=len(unstarted) - released,
            # Some succeeded and were cancelled while they waited for event callbacks.
            abandoned=tuple(
                (message.stream, message.id) for message in cancelled if message.progress is not HandlerState.SUCCEEDED
            ),
            unacknowledged=tuple((message.stream, message.id) for message in unacknowledged),
            unanswered_reads=sum(shard.fetcher.is_unanswered for shard in self._shards),
        )
        _log(report, still_running)
        return report

    async def _flush_and_close(self) -> list[RuntimeMessage]:
        """Send the last acknowledgements and close the connections. Return the unconfirmed messages."""
        await _either(self._leases.flush(), self._aborted, timeout_s=_ACKS_S)
        left = await asyncio.gather(*(shard.close() for shard in self._shards))
        return [message for messages in left for message in messages]


async def _either(waiting: Coroutine[Any, Any, None], event: asyncio.Event, *, timeout_s: float) -> None:
    """Return when ``waiting`` has ended, when ``event`` is set, or after ``timeout_s``."""
    tasks = {asyncio.create_task(waiting), asyncio.create_task(event.wait())}
    await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def wait_unless_forced(waiting: Coroutine[Any, Any, None], forced: asyncio.Event) -> None:
    """Wait for ``waiting``. ``FORCED_STOP_TIMEOUT_S`` after the stop is forced, cancel it."""
    task, watcher = asyncio.create_task(waiting), asyncio.create_task(forced.wait())
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((task,), timeout=FORCED_STOP_TIMEOUT_S)
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)
    if not task.cancelled():
        task.result()


def _log(report: StopReport, still_running: int) -> None:
    facts = asdict(report) | {"abandoned": len(report.abandoned), "unacknowledged": len(report.unacknowledged)}
    logger.info("worker stopped: %(succeeded)s succeeded, %(failed)s failed", **facts, still_running=still_running)
