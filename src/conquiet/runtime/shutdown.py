"""The end of an engine, in its order: hand back, let finish, acknowledge, close, report.

    hold the slots ──▶ hand back what was not begun ──▶ grace for what runs ──▶ break off what still does
                                                                                     │
      report ◀── end heartbeat and callbacks ◀── close connections ◀── last acknowledgements

The heartbeat goes on until the last handler is through: what runs in its grace period is still ours.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

from conquiet.runtime.concurrency_pool import ConcurrencyPool
from conquiet.runtime.context import RuntimeMessage
from conquiet.runtime.health import StopReport
from conquiet.runtime.lease import Heartbeat, LeaseTable
from conquiet.runtime.metrics import StreamTally
from conquiet.runtime.servers import Servers
from conquiet.runtime.shard import Shard

logger = logging.getLogger(__name__)

FORCED_S = 5.0
_ACKS_S = 5.0


class Shutdown:
    """Stops the parts of one engine. Afterwards no task and no thread of theirs is left.

    Args:
        shards: What fetches and acknowledges.
        pool: What runs.
        heartbeat: What keeps it ours meanwhile.
        servers: Closed at the end.
        table: What we hold.
        tallies: What was done.
        grace_s: How long running handlers may go on.
        forced: Set when nobody wants to wait for that.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        *,
        pool: ConcurrencyPool[RuntimeMessage],
        heartbeat: Heartbeat,
        servers: Servers,
        table: LeaseTable,
        tallies: Mapping[str, StreamTally],
        grace_s: float,
        forced: asyncio.Event,
    ) -> None:
        self._shards = shards
        self._pool = pool
        self._heartbeat = heartbeat
        self._servers = servers
        self._table = table
        self._tallies = tallies
        self._grace_s = grace_s
        self._forced = forced

    async def run(self) -> StopReport:
        """Go through it all; nothing is being fetched any more."""
        self._pool.hold()
        unstarted = self._pool.take_back()
        handed_back = await self._hand_back(unstarted)
        await self._let_finish()
        abandoned = self._pool.cancel_running()
        if abandoned:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._pool.wait_quiet(), FORCED_S)
        stubborn = await self._pool.close(timeout_s=FORCED_S)
        unacknowledged = await self._settle()
        self._heartbeat.stop()
        await asyncio.to_thread(self._heartbeat.join, FORCED_S)
        await self._servers.close()
        for stream, tally in self._tallies.items():
            tally.flush(len(self._table.of(stream)))
        report = StopReport(
            succeeded=sum(tally.succeeded for tally in self._tallies.values()),
            failed=sum(tally.failed for tally in self._tallies.values()),
            handed_back=handed_back,
            stranded=len(unstarted) - handed_back,
            abandoned=tuple((message.stream, message.id) for message in abandoned),
            unacknowledged=tuple((message.stream, message.id) for message in unacknowledged),
        )
        _log(report, stubborn)
        return report

    async def _hand_back(self, unstarted: list[RuntimeMessage]) -> int:
        given = 0
        for shard in self._shards:
            given += await shard.hand_back([message for message in unstarted if message.stream in shard.streams])
        return given

    async def _let_finish(self) -> None:
        """Give running handlers the grace period, or until the stop is forced."""
        quiet = asyncio.create_task(self._pool.wait_quiet())
        forced = asyncio.create_task(self._forced.wait())
        await asyncio.wait({quiet, forced}, timeout=self._grace_s, return_when=asyncio.FIRST_COMPLETED)
        for task in (quiet, forced):
            task.cancel()
        await asyncio.gather(quiet, forced, return_exceptions=True)

    async def _settle(self) -> list[RuntimeMessage]:
        """Send the last acknowledgements and close the connections. Returns what was not confirmed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ACKS_S):
                await asyncio.gather(*(shard.acknowledger.flush() for shard in self._shards))
        return [message for shard in self._shards for message in await shard.close()]


async def outlast(
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
        "handed_back": report.handed_back,
        "stranded": report.stranded,
        "abandoned": len(report.abandoned),
        "unacknowledged": len(report.unacknowledged),
        "stubborn": stubborn,
    }
    logger.info("engine stopped", extra=facts)
