"""One worker process of the demo: process it, commit it, then acknowledge it.

Its settings are the first line on stdin. They are not arguments, because they may hold a password and every user of the
host can read arguments. The end of stdin, also by the death of the orchestrator, stops the worker. The shared state
controls when it may read and when it stops after a COMMIT.
"""

import json
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from redis import Redis

from conquiet.cli.demo.shared_state import DemoWorkerRow, DemoWorkerState, SharedState
from conquiet.cli.demo.store import Store, open_engine
from conquiet.cli.stdio import call_at_end_of_input
from conquiet.config import QueueConfig
from conquiet.db import DbSession
from conquiet.errors import ConquietError
from conquiet.queue import MessageBatch, QueueMessage, RedisStreamsQueue
from conquiet.transactional import Inbox

if TYPE_CHECKING:
    from sqlalchemy import Engine

BATCH = 20
STALE_MS = 1_500
_CLAIM_EVERY_S = 0.5
_BLOCK_MS = 100
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings of one worker process."""

    redis_url: str
    db_url: str
    suffix: str
    stream: str
    group: str
    name: str
    row: int
    state: str

    def line(self) -> bytes:
        """Return the settings as one line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @property
    def queue_config(self) -> QueueConfig:
        """Configuration of its queue."""
        return QueueConfig(self.stream, self.group, self.name, block_ms=_BLOCK_MS, max_read_count=BATCH)


class DemoWorker:
    """Reads batches, handles their messages one by one, and claims the messages of killed workers."""

    def __init__(
        self,
        settings: WorkerSettings,
        engine: "Engine",
        queue: RedisStreamsQueue,
        state: SharedState,
        ended: threading.Event,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._store = Store(engine, settings.suffix)
        self._inbox = Inbox(self._store.inbox)
        self._queue = queue
        self._state = state
        self._ended = ended
        # A worker that is restarted under the same name continues its counters.
        before = state.read(settings.row)
        self._row = before._replace(pid=os.getpid(), state=DemoWorkerState.STARTING, in_flight=0)
        self._next_claim_s = 0.0

    def run(self) -> None:
        """Work until the pipe is closed."""
        if self._wait_for_permission():
            own = self._queue.recover_own()
            self._take(own, recovered=len(own))
        while self._wait_for_permission():
            stale = self._stale()
            if stale:
                self._take(stale, recovered=len(stale))
            else:
                self._take(self._queue.read(_BLOCK_MS, BATCH), recovered=0)
        self._write_row(self._row._replace(state=DemoWorkerState.DONE))

    def _wait_for_permission(self) -> bool:
        """Wait until the orchestrator allows reading; False when it has closed the pipe."""
        while not self._ended.is_set():
            if self._is_allowed():
                self._set_state(DemoWorkerState.WORKING)
                # Checked again after the change of the row: the command may have changed while the row was WAITING.
                if self._is_allowed():
                    return True
            self._set_state(DemoWorkerState.WAITING)
            self._ended.wait(_POLL_S)
        return False

    def _is_allowed(self) -> bool:
        return self._state.command.allows(self._settings.row)

    def _set_state(self, state: DemoWorkerState) -> None:
        if self._row.state != state:
            self._write_row(self._row._replace(state=state))

    def _stale(self) -> MessageBatch:
        now = time.monotonic()
        if now < self._next_claim_s:
            return MessageBatch()
        self._next_claim_s = now + _CLAIM_EVERY_S
        return self._queue.claim_stale(STALE_MS, BATCH)

    def _take(self, batch: MessageBatch, *, recovered: int) -> None:
        self._write_row(self._row._replace(in_flight=len(batch), recovered=self._row.recovered + recovered))
        for message in batch:
            self._handle(message)

    def _handle(self, message: QueueMessage) -> None:
        with DbSession(self._engine) as session, self._inbox.once(session, message) as first:
            if first:
                self._store.apply_order(session, message.payload)
        row = self._row
        self._write_row(row._replace(handled=row.handled + 1, duplicates=row.duplicates + (not first)))
        if first and self._state.command.freeze == self._settings.row:
            self._freeze()
        # Commit first, ack second. Killed in between, the message is delivered again and its inbox row in
        # the same transaction turns that into a no-op. The other order would lose it.
        self._queue.ack(message)
        self._write_row(self._row._replace(in_flight=self._row.in_flight - 1))

    def _freeze(self) -> None:
        self._write_row(self._row._replace(state=DemoWorkerState.FROZEN))
        self._ended.wait()  # or SIGKILL

    def _write_row(self, row: DemoWorkerRow) -> None:
        self._row = row
        self._state.write(self._settings.row, row)


def main() -> int:
    """Run one worker; return 0 when the pipe was closed, 1 when a server failed."""
    # Ctrl-C is for the orchestrator, which then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.INFO)
    with open(0, "rb", buffering=0, closefd=False) as pipe:
        line = pipe.readline()
    if not line:
        return 0
    ended = threading.Event()
    call_at_end_of_input(ended.set)
    settings = WorkerSettings(**json.loads(line))
    state = SharedState(Path(settings.state))
    engine = open_engine(settings.db_url)
    client = Redis.from_url(settings.redis_url)
    try:
        with RedisStreamsQueue(client, settings.queue_config) as queue:
            DemoWorker(settings, engine, queue, state, ended).run()
    except ConquietError as error:
        # Unfinished messages remain pending, and another worker claims them.
        if not ended.is_set():
            print(f"{settings.name}: {error}", file=sys.stderr)  # noqa: T201 - a worker's only output
        return 1
    finally:
        client.close()
        engine.dispose()
        state.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
