"""One worker process of the demo: process it, commit it, then acknowledge it.

Its job comes as the first line on stdin (not as arguments, which every user of the machine can
read: there may be a password in it). After that stdin is the leash: its end, also by the conductor's
death, asks for the end. When to read, and when to stand still at the worst moment, is on the board.
"""

import json
import logging
import os
import select
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from redis import Redis

from conquiet.bridge import Inbox
from conquiet.cli.demo.board import Board, Row, State
from conquiet.cli.demo.store import Store, open_engine
from conquiet.config import QueueConfig
from conquiet.db import DbSession
from conquiet.errors import ConquietError
from conquiet.queue import MessageBatch, QueueMessage, RedisStreamsQueue

if TYPE_CHECKING:
    from sqlalchemy import Engine

BATCH = 20
STALE_MS = 1_500
_LOOK_FOR_STALE_S = 0.5
_BLOCK_MS = 100
_NAP_S = 0.02
_STDIN = 0


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker has to know."""

    redis_url: str
    db_url: str
    suffix: str
    stream: str
    group: str
    name: str
    row: int
    board: str

    def line(self) -> bytes:
        """Return the job as one line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @property
    def queue_config(self) -> QueueConfig:
        """Where it reads, and under which name."""
        return QueueConfig(self.stream, self.group, self.name, block_ms=_BLOCK_MS, max_read_count=BATCH)


class Leash:
    """What the conductor holds the other end of, looked at between two batches."""

    def __init__(self) -> None:
        self._unread = b""
        self._ended = False

    def first_line(self) -> bytes:
        """Wait for the job."""
        while b"\n" not in self._unread and not self._ended:
            self._pull()
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    @property
    def ended(self) -> bool:
        """True once the conductor let go, or died."""
        while not self._ended and select.select([_STDIN], [], [], 0)[0]:
            self._pull()
        return self._ended

    def _pull(self) -> None:
        received = os.read(_STDIN, 65_536)
        self._unread += received
        self._ended = not received


class Worker:
    """Reads batches, handles their messages one by one, and takes over what the dead left behind."""

    def __init__(self, job: Job, engine: "Engine", queue: RedisStreamsQueue, board: Board, leash: Leash) -> None:
        self._job = job
        self._engine = engine
        self._store = Store(engine, job.suffix)
        self._inbox = Inbox(self._store.inbox)
        self._queue = queue
        self._board = board
        self._leash = leash
        # A worker that comes back under its name goes on counting where it was killed.
        before = board.read(job.row)
        self._row = before._replace(pid=os.getpid(), state=State.STARTING, in_hand=0)
        self._next_look_s = 0.0

    def run(self) -> None:
        """Work until the leash ends."""
        if self._admitted():
            own = self._queue.recover_own()
            self._take(own, recovered=len(own))
        while self._admitted():
            stale = self._stale()
            if stale:
                self._take(stale, recovered=len(stale))
            else:
                self._take(self._queue.read(_BLOCK_MS, BATCH), recovered=0)
        self._note(self._row._replace(state=State.DONE))

    def _admitted(self) -> bool:
        """Wait until the conductor lets us read; False when it let go."""
        while not self._leash.ended:
            if self._may_read():
                self._become(State.WORKING)
                # Asked again now that our row says so: it must not close the door, see us wait, and then be read past.
                if self._may_read():
                    return True
            self._become(State.WAITING)
            signal.sigtimedwait([], _NAP_S)
        return False

    def _may_read(self) -> bool:
        return self._board.call.admits(self._job.row)

    def _become(self, state: State) -> None:
        if self._row.state != state:
            self._note(self._row._replace(state=state))

    def _stale(self) -> MessageBatch:
        now = time.monotonic()
        if now < self._next_look_s:
            return MessageBatch()
        self._next_look_s = now + _LOOK_FOR_STALE_S
        return self._queue.claim_stale(STALE_MS, BATCH)

    def _take(self, batch: MessageBatch, *, recovered: int) -> None:
        self._note(self._row._replace(in_hand=len(batch), recovered=self._row.recovered + recovered))
        for message in batch:
            self._handle(message)

    def _handle(self, message: QueueMessage) -> None:
        with DbSession(self._engine) as session, self._inbox.once(session, message) as first:
            if first:
                self._store.carry_out(session, message.payload)
        row = self._row
        self._note(row._replace(handled=row.handled + 1, duplicates=row.duplicates + (not first)))
        if first and self._board.call.freeze == self._job.row:
            self._freeze()
        # Commit first, ack second. Killed in between, the message is delivered again and its inbox row in
        # the same transaction turns that into a no-op. The other order would lose it.
        self._queue.ack(message)
        self._note(self._row._replace(in_hand=self._row.in_hand - 1))

    def _freeze(self) -> None:
        self._note(self._row._replace(state=State.FROZEN))
        while not self._leash.ended:  # SIGKILL ends it; the conductor's death does too
            signal.sigtimedwait([], _NAP_S)

    def _note(self, row: Row) -> None:
        self._row = row
        self._board.write(self._job.row, row)


def main() -> int:
    """Run one worker; 0 when it was let go, 1 when a server failed it."""
    # Ctrl-C is for the conductor, which then lets go of the leash.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.INFO)
    leash = Leash()
    line = leash.first_line()
    if not line:
        return 0
    job = Job(**json.loads(line))
    board = Board(Path(job.board))
    engine = open_engine(job.db_url)
    client = Redis.from_url(job.redis_url)
    try:
        with RedisStreamsQueue(client, job.queue_config) as queue:
            Worker(job, engine, queue, board, leash).run()
    except ConquietError as error:
        # What is unfinished stays pending: whoever comes next finds it.
        if not leash.ended:
            print(f"{job.name}: {error}", file=sys.stderr)  # noqa: T201 - a worker's only voice
        return 1
    finally:
        client.close()
        engine.dispose()
        board.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
