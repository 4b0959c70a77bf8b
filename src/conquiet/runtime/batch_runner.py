"""Run one batch and settle each of its messages. Single messages are run by the base class.

each: still owned? ─▶ execute all together ─▶ acknowledge the successes together, settle each of the others
"""

import asyncio
import time
from collections.abc import Sequence

from conquiet.core.settlement import ACKNOWLEDGE, KeepPending, Release, Settlement
from conquiet.runtime.batch import Batch
from conquiet.runtime.engine_events import Started
from conquiet.runtime.executor import ENDS
from conquiet.runtime.message import HandlerState, Ownership, RuntimeMessage
from conquiet.runtime.runner import Runner

# An access to a member of an enum class costs as much as a function call.
_RUNNING, _HELD = HandlerState.RUNNING, Ownership.HELD


class BatchRunner(Runner):
    """Runs the messages and the batches of a ``BatchPool``. Takes the arguments of ``Runner``."""

    async def run_batch(self, batch: Batch) -> None:
        """Run a batch. Raises only a cancellation or an error that ends the process."""
        assert self._executor.batching is not None  # noqa: S101 - else there are no batches
        messages = await self._admitted(batch.messages)
        if not messages:
            return
        began = time.monotonic()
        for message in messages:
            message.started_at = began
            message.progress = _RUNNING
        if Started in self._subscribed:
            for message in messages:
                self._dispatcher.emit(Started(message))
        try:
            settlements = await self._executor.batching.execute_batch(batch.key, messages, self._leases)
        except ENDS as error:
            # Cancelled by a forced stop, or the process is ending. The next owner finds what was committed.
            for message in messages:
                self._end(message, error, began)
            raise
        except BaseException as error:  # noqa: BLE001 - a bug in an executor must not end the worker
            settlements = [KeepPending(error)] * len(messages)
        await self._settle_each(messages, settlements, began)
        if self._outage.is_on and not any(isinstance(settlement, Release) for settlement in settlements):
            self._outage.record_result(started_at=began)
        if self._dispatcher.is_full:
            await self._dispatcher.wait_below_limit()

    async def _admitted(self, messages: Sequence[RuntimeMessage]) -> list[RuntimeMessage]:
        """Return the messages to run. The others have been settled."""
        admitted = []
        now = time.monotonic()
        for message in messages:
            if now - message.leased_at > self._claim_idle_s or message.ownership is not _HELD or self._outage.is_on:
                may_run = await self.admit(message, time.monotonic())
                now = time.monotonic()
                if not may_run:
                    continue
            admitted.append(message)
        return admitted

    async def _settle_each(
        self, messages: Sequence[RuntimeMessage], settlements: Sequence[Settlement], began: float
    ) -> None:
        rest, done = [], []
        acknowledge = self._acknowledge
        for message, settlement in zip(messages, settlements, strict=True):
            if settlement is ACKNOWLEDGE and message.ownership is _HELD:
                acknowledge(message)
                done.append(message)
            else:
                rest.append(self.settle(message, settlement, began))
        if done:
            self._outcomes.succeeded_together(done, began)
        if rest:
            await asyncio.gather(*rest)
