"""Payloads from a source that may be slow or endless, in batches that do not wait for ever to be full.

The source is read in a thread of its own, so that neither a heartbeat nor a signal waits for its next line. What comes
before an error of the source is given on first, then the error is raised.
"""

import time
from collections.abc import AsyncIterator, Iterator
from queue import Empty, Queue
from threading import Thread
from typing import Any, Final

_ROOM: Final = 2_000
_LINGER_S: Final = 0.2
_PAUSE_S: Final = 0.02


class _End:
    """The source is exhausted, or has failed."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


class Feed:
    """One source, read once.

    Args:
        source: What to read. It must not be touched by anybody else.
        size: Most payloads in a batch. One that is smaller is given on 0.2 s after its first payload came.
    """

    def __init__(self, source: Iterator[dict[str, Any]], *, size: int) -> None:
        self._source = source
        self._size = size
        self._ready: Queue[dict[str, Any] | _End] = Queue(_ROOM)
        self._end: _End | None = None
        self._due = 0.0
        # Nobody can interrupt a read: the thread is left behind in it when the command ends before its source.
        Thread(target=self._read, name="conquiet-feed", daemon=True).start()

    def batches(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the batches."""
        while self._end is None:
            batch: list[dict[str, Any]] = []
            try:
                while self._wants_more(batch):
                    self._put(self._ready.get(timeout=self._patience_s() if batch else None), batch)
            except Empty:
                pass
            if batch:
                yield batch
        self._raise_its_error()

    async def batches_async(self) -> AsyncIterator[list[dict[str, Any]]]:
        """Yield the batches; meanwhile the event loop goes on."""
        import asyncio

        while self._end is None:
            batch: list[dict[str, Any]] = []
            while self._wants_more(batch):
                try:
                    self._put(self._ready.get_nowait(), batch)
                except Empty:
                    if batch and not self._patience_s():
                        break
                    await asyncio.sleep(_PAUSE_S)
            if batch:
                yield batch
        self._raise_its_error()

    def _read(self) -> None:
        try:
            for payload in self._source:
                self._ready.put(payload)
        except Exception as error:  # noqa: BLE001 - it is raised where the payloads are wanted
            self._ready.put(_End(error))
        else:
            self._ready.put(_End(None))

    def _wants_more(self, batch: list[dict[str, Any]]) -> bool:
        return self._end is None and len(batch) < self._size

    def _put(self, got: "dict[str, Any] | _End", batch: list[dict[str, Any]]) -> None:
        if isinstance(got, _End):
            self._end = got
            return
        if not batch:
            self._due = time.monotonic() + _LINGER_S
        batch.append(got)

    def _patience_s(self) -> float:
        return max(0.0, self._due - time.monotonic())

    def _raise_its_error(self) -> None:
        if self._end is not None and self._end.error is not None:
            raise self._end.error
