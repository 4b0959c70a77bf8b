"""The end of an engine, in order: release, let handlers finish, acknowledge, close, report.

    pause the pool ──▶ release what was not started ──▶ grace for running handlers ──▶ cancel the rest
                                                                                            │
      report ◀── stop heartbeat and callbacks ◀── close connections ◀── last acknowledgements

The heartbeat goes on until the last handler has ended: what runs in its grace period is still ours.

Once the stop is forced, a server that replies has half a second for all of it. Then the connections are aborted, which
makes every pending wait fail.

See docs/decisions/0014.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from conquiet.core.log import FactLogger
from conquiet.redis_transport.topology import Topology
from conquiet.runtime.batch import MessagePool
from conquiet.runtime.health import StopReport
from conquiet.runtime.lease import Heartbeat
from conquiet.runtime.leases import Leases
from conquiet.runtime.message import HandlerState, RuntimeMessage
from conquiet.runtime.metrics import StreamStats
from conquiet.runtime.shard import Shard

logger = FactLogger(__name__)

_CANCELLED_S = 5.0
"""How long handlers that were broken off, and callbacks that are behind, may take to come to their end."""
_ACKS_S = 5.0
FORCED_STOP_TIMEOUT_S = 0.5
"""The same, and for the last commands to a server, once the stop is forced."""
_ABORT_AGAIN_S = 0.05


class Shutdown:
    """Stops the parts of one engine. Afterwards no task and no thread of theirs is left.

    Args:
        shards: What fetches and acknowledges.
        pool: What runs.
        leases: Releases what was not started.
        heartbeat: Keeps the leases meanwhile.
        topology: Closed at the end.
        stats: Counts by stream.
        grace_s: How long running handlers may go on.
        forced: Set when that is not to be waited for.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        *,
        pool: MessagePool,
        leases: Leases,
        heartbeat: Heartbeat,
        topology: Topology,
        stats: Mapping[str, StreamStats],
        grace_s: float,
        forced: asyncio.Event,
    ) -> None:
        self._shards = shards
        self._pool = pool
        self._heartbeat = heartbeat
        self._leases = leases
        self._topology = topology
        self._stats = stats
        self._grace_s = grace_s
        self._forced = forced
        self._aborted = asyncio.Event()

    @property
    def patience_s(self) -> float:
        """How long to wait for parts that are ending."""
        return FORCED_STOP_TIMEOUT_S if self._forced.is_set() else _CANCELLED_S

    async def abort_when_forced(self) -> None:
        """Cut the connections soon after the stop is forced, and again until cancelled."""
        await self._forced.wait()
        await asyncio.sleep(FORCED_STOP_TIMEOUT_S)
        self._aborted.set()
        while True:
            for shard in self._shards:
                shard.abort()
            await asyncio.sleep(_ABORT_AGAIN_S)

    async def run(self) -> StopReport:
        """Go through it all; nothing is being fetched any more."""
        self._pool.pause()
        unstarted = self._pool.drain_queue()
        released = await self._leases.release(unstarted)
        await _either(self._pool.wait_idle(), self._forced, timeout_s=self._grace_s)
        cancelled = self._pool.cancel_running()
        if cancelled:
            await _either(self._pool.wait_idle(), self._aborted, timeout_s=_CANCELLED_S)
        stubborn = await self._pool.close(timeout_s=self.patience_s)
        for message in self._pool.running:
            # Its handler goes on, but its lease is not kept from now on: no result of it is a success.
            if not message.has_ended:
                message.lose()
        unacknowledged = await self._flush_and_close()
        await self._heartbeat.stop(timeout_s=self.patience_s)
        await self._topology.close()
        for stats in self._stats.values():
            stats.flush(0)  # nothing is in flight here any more
        report = StopReport(
            succeeded=sum(stats.succeeded for stats in self._stats.values()),
            failed=sum(stats.failed for stats in self._stats.values()),
            released=released,
            unreleased=len(unstarted) - released,
            # Some have succeeded although they were cancelled: they wait for callbacks to catch up.
            abandoned=tuple(
                (message.stream, message.id) for message in cancelled if message.progress is not HandlerState.SUCCEEDED
            ),
            unacknowledged=tuple((message.stream, message.id) for message in unacknowledged),
            unanswered_reads=sum(shard.fetcher.is_unanswered for shard in self._shards),
        )
        _log(report, stubborn)
        return report

    async def _flush_and_close(self) -> list[RuntimeMessage]:
        """Send the last acknowledgements and close the connections. Returns what was not confirmed."""
        await _either(_all_of([shard.acknowledger.flush() for shard in self._shards]), self._aborted, timeout_s=_ACKS_S)
        left = await asyncio.gather(*(shard.close() for shard in self._shards))
        return [message for messages in left for message in messages]


async def _either(waiting: Coroutine[Any, Any, None], event: asyncio.Event, *, timeout_s: float) -> None:
    """Return when the one has ended or the other has happened, and at the latest after so long."""
    tasks = {asyncio.create_task(waiting), asyncio.create_task(event.wait())}
    await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _all_of(waiting: list[Coroutine[Any, Any, None]]) -> None:
    await asyncio.gather(*waiting)


async def wait_shielded(
    engine: asyncio.Task[StopReport], *, stop: Callable[[], None], force: Callable[[], None]
) -> StopReport:
    """Wait for the engine, whatever happens to the caller's task meanwhile.

    The first cancellation of the caller is a stop, the second one forces; then it goes on as a cancellation.
    """
    cancelled: asyncio.CancelledError | None = None
    while not engine.done():
        try:
            await asyncio.shield(engine)
        except asyncio.CancelledError as error:
            if engine.done():
                break
            # A read that is broken off would strand entries: the engine is stopped, not cancelled.
            if cancelled is not None:
                force()
            cancelled = error
            stop()
        except Exception:  # noqa: BLE001 - raised again below, from the task itself
            break
    if cancelled is not None:
        if not engine.cancelled():
            engine.exception()  # seen: the cancellation is what the caller gets
        raise cancelled
    return engine.result()


def _log(report: StopReport, stubborn: int) -> None:
    facts = {
        "succeeded": report.succeeded,
        "failed": report.failed,
        "released": report.released,
        "unreleased": report.unreleased,
        "abandoned": len(report.abandoned),
        "unacknowledged": len(report.unacknowledged),
        "unanswered_reads": report.unanswered_reads,
        "stubborn": stubborn,
    }
    logger.info("worker stopped: %(succeeded)s succeeded, %(failed)s failed", **facts)
