"""Run one batch and settle each of its messages. Single messages go to ``Runner``.

each: still owned? ─▶ execute all together ─▶ acknowledge the successes together, settle each of the others
"""

import asyncio
import time
from collections.abc import Sequence

from conquiet.core.settlement import ACKNOWLEDGE, KeepPending, Release, Settlement
from conquiet.runtime.batch import Batching, Item
from conquiet.runtime.context import LeaseManager
from conquiet.runtime.engine_events import EventDispatcher, Started
from conquiet.runtime.executor import ENDS
from conquiet.runtime.message import HandlerState, Ownership, RuntimeMessage
from conquiet.runtime.outage import OutagePause
from conquiet.runtime.outcomes import OutcomeReporter
from conquiet.runtime.runner import Runner
from conquiet.runtime.settler import Settler

# An access to a member of an enum class costs as much as a function call.
_RUNNING, _HELD = HandlerState.RUNNING, Ownership.HELD


class BatchRunner:
    """Handles the items of a ``BatchPool``.

    Args:
        batching: Executes batches.
        runner: Runs single messages, admits the messages of a batch, and settles messages that are not acknowledged.
        settler: Acknowledges, and keeps messages pending when the worker ends.
        leases: Lease operations for contexts.
        dispatcher: Receives ``started`` events.
        outcomes: Counts and reports how messages ended.
        outage: While it is paused, unstarted messages are released.
    """

    def __init__(
        self,
        batching: Batching,
        *,
        runner: Runner,
        settler: Settler,
        leases: LeaseManager,
        dispatcher: EventDispatcher,
        outcomes: OutcomeReporter,
        outage: OutagePause,
    ) -> None:
        self._batching = batching
        self._runner = runner
        self._settler = settler
        self._leases = leases
        self._dispatcher = dispatcher
        self._outcomes = outcomes
        self._outage = outage

    async def __call__(self, item: Item) -> None:
        """Handle an item. Raises only a cancellation or an error that ends the process."""
        if isinstance(item, RuntimeMessage):
            if (rest := self._runner(item)) is not None:
                await rest
        elif messages := await self._admitted(item.messages):
            await self._run(item.key, messages)

    async def _run(self, key: str, messages: list[RuntimeMessage]) -> None:
        began = time.monotonic()
        for message in messages:
            message.started_at = began
            message.progress = _RUNNING
        if Started in self._dispatcher.subscribed:
            for message in messages:
                self._dispatcher.emit(Started(message))
        try:
            settlements = await self._batching.execute_batch(key, messages, self._leases)
        except ENDS as error:
            # Cancelled by a forced stop, or the process is ending. The next owner finds what was committed.
            for message in messages:
                self._outcomes.failed(message, error, began)
                self._settler.keep_pending(message)
            raise
        except BaseException as error:  # noqa: BLE001 - a bug in an executor must not end the worker
            settlements = [KeepPending(error)] * len(messages)
        await self._settle(messages, settlements, began)
        if self._outage.is_on and not any(isinstance(settlement, Release) for settlement in settlements):
            self._outage.record_result(started_at=began)
        if self._dispatcher.is_full:
            await self._dispatcher.wait_below_limit()

    async def _admitted(self, messages: Sequence[RuntimeMessage]) -> list[RuntimeMessage]:
        """Return the messages to run. The others have been settled."""
        admitted = []
        now = time.monotonic()
        for message in messages:
            needs_check = (
                now - message.leased_at > self._leases.claim_idle_s
                or message.ownership is not _HELD
                or self._outage.is_on
            )
            if needs_check:
                now = time.monotonic()
                if not await self._runner.admit(message, now):
                    continue
                now = time.monotonic()
            admitted.append(message)
        return admitted

    async def _settle(
        self, messages: Sequence[RuntimeMessage], settlements: Sequence[Settlement], began: float
    ) -> None:
        rest, done = [], []
        acknowledge = self._settler.acknowledge
        for message, settlement in zip(messages, settlements, strict=True):
            if settlement is ACKNOWLEDGE and message.ownership is _HELD:
                acknowledge(message)
                done.append(message)
            else:
                rest.append(self._runner.settle(message, settlement, began))
        if done:
            self._outcomes.succeeded_together(done, began)
        if rest:
            await asyncio.gather(*rest)
