"""The end of an engine, in its order: hand back, let finish, acknowledge, close, report.

    hold the slots ──▶ hand back what was not begun ──▶ grace for what runs ──▶ break off what still does
                                                                                     │
      report ◀── end heartbeat and callbacks ◀── close connections ◀── last acknowledgements

The heartbeat goes on until the last handler is through: what runs in its grace period is still ours.

Once the stop is forced, a server that answers has half a second for all of it. Then the connections are cut, and
whatever still waits for an answer fails: there is one way out of every wait, whoever waits and wherever.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from conquiet.runtime.concurrency_pool import ConcurrencyPool
from conquiet.runtime.context import RuntimeMessage
from conquiet.runtime.health import StopReport
from conquiet.runtime.lease import Heartbeat
from conquiet.runtime.metrics import StreamTally
from conquiet.runtime.servers import Servers
from conquiet.runtime.shard import Shard

logger = logging.getLogger(__name__)

_BROKEN_OFF_S = 5.0
"""How long handlers that were broken off, and callbacks that are behind, may take to come to their end."""
_ACKS_S = 5.0
_LAST_WORDS_S = 0.5
"""The same, and for everything that a server is still to be told, once the stop is forced."""
_CUT_AGAIN_S = 0.05


class Shutdown:
    """Stops the parts of one engine. Afterwards no task and no thread of theirs is left.

    Args:
        shards: What fetches and acknowledges.
        pool: What runs.
        heartbeat: What keeps it ours meanwhile.
        servers: Closed at the end.
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
        tallies: Mapping[str, StreamTally],
        grace_s: float,
        forced: asyncio.Event,
    ) -> None:
        self._shards = shards
        self._pool = pool
        self._heartbeat = heartbeat
        self._servers = servers
        self._tallies = tallies
        self._grace_s = grace_s
        self._forced = forced
        self._cut = asyncio.Event()

    @property
    def patience_s(self) -> float:
        """How long to wait for what was told to end."""
        return _LAST_WORDS_S if self._forced.is_set() else _BROKEN_OFF_S

    async def cut_when_forced(self) -> None:
        """Cut the connections soon after the stop is forced, and again until cancelled."""
        await self._forced.wait()
        await asyncio.sleep(_LAST_WORDS_S)
        self._cut.set()
        while True:
            for shard in self._shards:
                shard.cut()
            await asyncio.sleep(_CUT_AGAIN_S)

    async def run(self) -> StopReport:
        """Go through it all; nothing is being fetched any more."""
        self._pool.hold()
        unstarted = self._pool.take_back()
        handed_back = await self._hand_back(unstarted)
        await _either(self._pool.wait_quiet(), self._forced, timeout_s=self._grace_s)
        broken_off = self._pool.cancel_running()
        if broken_off:
            await _either(self._pool.wait_quiet(), self._cut, timeout_s=_BROKEN_OFF_S)
        stubborn = await self._pool.close(timeout_s=self.patience_s)
        for message in self._pool.running:
            # Its handler goes on, and nobody keeps or acknowledges it from now on: whatever comes of it is no success.
            message.lease_lost = message.lease_lost or not message.settled
        unacknowledged = await self._settle()
        await self._heartbeat.stop(timeout_s=self.patience_s)
        await self._servers.close()
        for tally in self._tallies.values():
            tally.flush(0)  # whatever is left behind: nobody here has it in hand any more
        report = StopReport(
            succeeded=sum(tally.succeeded for tally in self._tallies.values()),
            failed=sum(tally.failed for tally in self._tallies.values()),
            handed_back=handed_back,
            stranded=len(unstarted) - handed_back,
            # Told to break off, some are through all the same, or have been: they wait for callbacks to catch up.
            abandoned=tuple((message.stream, message.id) for message in broken_off if not message.succeeded),
            unacknowledged=tuple((message.stream, message.id) for message in unacknowledged),
            unanswered_reads=sum(shard.intake.is_unanswered for shard in self._shards),
        )
        _log(report, stubborn)
        return report

    async def _hand_back(self, unstarted: list[RuntimeMessage]) -> int:
        # At the same time: a node that does not answer keeps nobody else's messages.
        given = [
            shard.hand_back([message for message in unstarted if message.stream in shard.streams])
            for shard in self._shards
        ]
        return sum(await asyncio.gather(*given))

    async def _settle(self) -> list[RuntimeMessage]:
        """Send the last acknowledgements and close the connections. Returns what was not confirmed."""
        await _either(_all_of([shard.acknowledger.flush() for shard in self._shards]), self._cut, timeout_s=_ACKS_S)
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
        "unanswered_reads": report.unanswered_reads,
        "stubborn": stubborn,
    }
    logger.info("engine stopped", extra=facts)
