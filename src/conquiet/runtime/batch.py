"""Batches in the engine: a batch is one item of the worker pool, with a settlement for each of its messages.

    Fetcher ──messages──▶ BatchPool ──┬─ malformed, suspect, no batch handler ──▶ WorkerPool ─▶ Runner
                                      └─ by key and size ─▶ BatchAssembler ────▶ WorkerPool ─▶ BatchRunner

An engine without batch handlers has none of this: its pool is the ``WorkerPool`` itself.

The batch size is halved for each earlier delivery of a message. A message that kills its process therefore runs with
half as many others each time, and alone after eight deliveries of a batch of 200. A message delivered more often than
half of ``max_deliveries`` runs alone, as without batches (see ``claiming``).

See docs/decisions/0044.
"""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from conquiet.core.batching import BatchAssembler, BatchSettings
from conquiet.core.settlement import Settlement
from conquiet.core.worker_pool import WorkerPool
from conquiet.runtime.context import LeaseManager
from conquiet.runtime.message import Charge, RuntimeMessage

_COUNTED = Charge.COUNTED  # an access to a member of an enum class costs as much as a function call


@dataclass(slots=True)
class Batch:
    """Messages that are executed together.

    Attributes:
        key: The key that ``Batching.find`` returned for all of them.
        messages: The messages.
        size: Maximum number of messages.
        due_at: See ``BatchAssembler``.
    """

    key: str
    messages: list[RuntimeMessage]
    size: int
    due_at: float | None


Item = RuntimeMessage | Batch


class Batching(Protocol):
    """The part of an executor that executes batches."""

    @property
    def largest(self) -> int:
        """Maximum number of messages in a batch."""
        ...

    def find(self, message: RuntimeMessage) -> tuple[str, BatchSettings] | None:
        """Return the batch key of a message and its batch settings. None if the message is executed alone."""
        ...

    async def execute_batch(
        self, key: str, messages: Sequence[RuntimeMessage], leases: LeaseManager
    ) -> Sequence[Settlement]:
        """Execute messages together and return one settlement for each. Raises only errors that end the worker."""
        ...


class BatchPool:
    """A worker pool of messages and batches. It counts messages.

    Args:
        limit: Maximum number of items handled concurrently.
        run: Handles a single message.
        run_batch: Handles a batch.
        batching: Decides which messages are batched.
        cap: Deliveries after which a message is not executed. None means no limit.
        on_free: Called when a worker is free.
    """

    def __init__(
        self,
        limit: int,
        run: Callable[[RuntimeMessage], Awaitable[None] | None],
        run_batch: Callable[[Batch], Awaitable[None]],
        *,
        batching: Batching,
        cap: int | None,
        on_free: Callable[[], None],
    ) -> None:
        self._limit = limit
        self._batching = batching
        self._cap = cap
        self._on_free = on_free
        self._is_paused = False
        self._run, self._run_batch = run, run_batch
        self._pool: WorkerPool[Item] = WorkerPool(limit, self._handle, on_free=self._freed)
        self._assembler: BatchAssembler[RuntimeMessage] = BatchAssembler(self._deliver, self._has_free_worker)
        self.start = self._pool.start
        self.wait_idle = self._pool.wait_idle
        self.owns_current_task = self._pool.owns_current_task
        self.close = self._pool.close

    @property
    def active(self) -> int:
        """See ``WorkerPool``."""
        return _count(self._pool.running)

    @property
    def waiting(self) -> int:
        """See ``WorkerPool``."""
        return _count(self._pool.queued)

    @property
    def in_flight(self) -> int:
        """See ``WorkerPool``."""
        return self.active + self.waiting + len(self._assembler)

    @property
    def running(self) -> list[RuntimeMessage]:
        """See ``WorkerPool``."""
        return _messages(self._pool.running)

    def put(self, items: list[RuntimeMessage]) -> None:
        """See ``WorkerPool``. Messages with a batch handler are gathered into batches."""
        alone: list[Item] = []
        together: dict[tuple[str, int], tuple[float, list[RuntimeMessage]]] = {}
        find, runs_by_itself = self._batching.find, self._runs_by_itself
        for message in items:
            found = None if runs_by_itself(message) else find(message)
            if found is None:
                alone.append(message)
                continue
            key, settings = found
            size = settings.size if message.delivery_count == 1 else settings.size_at(message.delivery_count)
            if size == 1:
                alone.append(message)
            elif (listed := together.get((key, size))) is not None:
                listed[1].append(message)
            else:
                together[key, size] = (settings.within_s, [message])
        for (key, size), (within_s, messages) in together.items():
            self._assembler.add_many((key, size), messages, size=size, within_s=within_s)
        self._pool.put(alone)

    def put_alone(self, items: list[RuntimeMessage]) -> None:
        """See ``WorkerPool``."""
        self._pool.put_alone(list(items))

    def notify_below(self, waiting: int) -> None:  # noqa: ARG002 - counts messages, but the pool counts items
        """See ``WorkerPool``."""
        self._pool.notify_below(0)

    def pause(self) -> None:
        """See ``WorkerPool``."""
        self._is_paused = True
        self._pool.pause()

    def drain_queue(self) -> list[RuntimeMessage]:
        """See ``WorkerPool``."""
        return self._assembler.take() + _messages(self._pool.drain_queue())

    def cancel_running(self) -> list[RuntimeMessage]:
        """See ``WorkerPool``."""
        return _messages(self._pool.cancel_running())

    def _runs_by_itself(self, message: RuntimeMessage) -> bool:
        if message.malformed or message.charge is not _COUNTED:
            return True
        return self._cap is not None and message.delivery_count > self._cap

    def _handle(self, item: Item) -> Awaitable[None] | None:
        return self._handle_batch(item) if isinstance(item, Batch) else self._run(item)

    async def _handle_batch(self, batch: Batch) -> None:
        await self._run_batch(batch)
        self._assembler.ended((batch.key, batch.size), batch.due_at)

    def _deliver(self, key: Hashable, messages: list[RuntimeMessage], due_at: float | None) -> None:
        assert isinstance(key, tuple)  # noqa: S101 - see ``put``
        self._pool.put([Batch(key[0], messages, key[1], due_at)])

    def _has_free_worker(self) -> bool:
        return not self._is_paused and self._pool.in_flight < self._limit

    def _freed(self) -> None:
        self._assembler.deliver_due()
        self._on_free()


MessagePool = WorkerPool[RuntimeMessage] | BatchPool
"""The pool of an engine. All numbers count messages."""


def _messages(items: Sequence[Item]) -> list[RuntimeMessage]:
    return [message for item in items for message in (item.messages if isinstance(item, Batch) else [item])]


def _count(items: Sequence[Item]) -> int:
    return sum(len(item.messages) if isinstance(item, Batch) else 1 for item in items)
