"""Read payloads from a slow or endless source in batches that wait only briefly to be full.

The source is read in a separate thread, so that neither a heartbeat nor a signal waits for its next line. Payloads
before an error of the source are yielded first, then the error is raised.
"""

import time
from collections.abc import AsyncIterator, Iterator
from queue import Empty, Queue
from threading import Thread
from typing import Any, Final

_CAPACITY: Final = 2_000
_LINGER_S: Final = 0.2
_POLL_S: Final = 0.02


class LineBatcher:
    """One source, read once.

    Args:
        source: The payloads. The caller must not iterate over it.
        size: Most payloads in a batch. A smaller batch is yielded 0.2 s after its first payload.
    """

    def __init__(self, source: Iterator[dict[str, Any]], *, size: int) -> None:
        self._source = source
        self._size = size
        self._ready: Queue[dict[str, Any] | None] = Queue(_CAPACITY)  # None is the end of the source
        self._ended = False
        self._error: Exception | None = None
        self._due = 0.0
        # A read cannot be interrupted: the thread blocks in it if the command ends before its source.
        Thread(target=self._read, name="conquiet-line-reader", daemon=True).start()

    def batches(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the batches."""
        while not self._ended:
            batch: list[dict[str, Any]] = []
            try:
                while self._needs_more(batch):
                    self._add(self._ready.get(timeout=self._remaining_s() if batch else None), batch)
            except Empty:
                pass
            if batch:
                yield batch
        self._raise_source_error()

    async def batches_async(self) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the batches without blocking the event loop."""
        import asyncio

        while not self._ended:
            batch: list[dict[str, Any]] = []
            while self._needs_more(batch):
                try:
                    self._add(self._ready.get_nowait(), batch)
                except Empty:
                    if batch and not self._remaining_s():
                        break
                    await asyncio.sleep(_POLL_S)
            if batch:
                yield batch
        self._raise_source_error()

    def _read(self) -> None:
        try:
            for payload in self._source:
                self._ready.put(payload)
        except Exception as error:  # noqa: BLE001 - raised by the consumer of the batches
            self._error = error
        self._ready.put(None)

    def _needs_more(self, batch: list[dict[str, Any]]) -> bool:
        return not self._ended and len(batch) < self._size

    def _add(self, got: dict[str, Any] | None, batch: list[dict[str, Any]]) -> None:
        if got is None:
            self._ended = True
            return
        if not batch:
            self._due = time.monotonic() + _LINGER_S
        batch.append(got)

    def _remaining_s(self) -> float:
        return max(0.0, self._due - time.monotonic())

    def _raise_source_error(self) -> None:
        if self._error is not None:
            raise self._error
