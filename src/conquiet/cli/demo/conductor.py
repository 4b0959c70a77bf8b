"""The course of the demo: enqueue, wait for all workers, watch, kill, enqueue the rest, watch on, sum up."""

import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any

from redis import Redis

from conquiet.cli.demo.board import EVERYBODY, Board, Call, Row, State
from conquiet.cli.demo.crew import Crew
from conquiet.cli.demo.faults import Faults, make_faults
from conquiet.cli.demo.ledger import Ledger
from conquiet.cli.demo.plan import DemoPlan
from conquiet.cli.demo.stage import GROUP, Stage
from conquiet.cli.demo.view import Snapshot, View, WorkerLine
from conquiet.cli.demo.worker import BATCH, Job
from conquiet.cli.failures import FAILED, CommandError
from conquiet.config import QueueConfig
from conquiet.errors import QueueError
from conquiet.queue import Backlog, RedisStreamsQueue

_LOOK_S = 0.1
# A Python that has to share its core with ten others needs half a minute for its imports alone.
_STUCK_S = 120.0  # killed workers are started anew meanwhile
_START_S = 300.0
_ENQUEUE_BATCH = 1_000


class Conductor:
    """Runs one demo on a stage that is set."""

    def __init__(self, plan: DemoPlan, stage: Stage, view: View) -> None:
        self._plan = plan
        self._stage = stage
        self._view = view
        self._begun = time.monotonic()
        self._progressed = self._begun
        self._last = Snapshot(total=plan.orders)
        self._payloads = plan.payloads()
        self._held_back = plan.held_back

    def run(self) -> Ledger:
        """Carry the demo out and return its ledger.

        Raises:
            CommandError: It got stuck: for two minutes no worker got anything done.
        """
        stage, plan = self._stage, self._plan
        self._view.say(f"{stage.redis_name}; orders go to {stage.db_name}")
        names = [f"worker-{number}" for number in range(1, plan.workers + 1)]
        config = QueueConfig(stage.stream, GROUP, "conductor")
        with (
            Redis.from_url(stage.redis_url) as client,
            RedisStreamsQueue(client, config) as queue,
            closing(Board.create(stage.folder / "board", plan.workers)) as board,
        ):
            jobs = [self._job(name, row) for row, name in enumerate(names)]
            with Crew(jobs, stage.folder / "workers.log") as crew:
                self._enqueue_all_but_the_last(queue)
                self._wait_for_all(queue, board, crew)
                seconds = self._watch(queue, board, crew, faults := make_faults(plan, stage.server))
            rows = [board.read(row) for row in range(plan.workers)]
            return self._sum_up(queue, rows, faults, seconds)

    def _job(self, name: str, row: int) -> Job:
        stage = self._stage
        return Job(
            redis_url=stage.redis_url,
            db_url=stage.db_url,
            suffix=stage.suffix,
            stream=stage.stream,
            group=GROUP,
            name=name,
            row=row,
            board=str(stage.folder / "board"),
        )

    def _enqueue_all_but_the_last(self, queue: RedisStreamsQueue) -> None:
        begun = time.monotonic()
        now = self._plan.orders - self._held_back
        self._enqueue(queue, islice(self._payloads, now))
        self._view.say(
            f"{now:,} orders enqueued in {time.monotonic() - begun:.1f} s; "
            f"the last {self._held_back:,} follow after the last kill"
        )

    def _enqueue_the_last(self, queue: RedisStreamsQueue) -> None:
        self._enqueue(queue, self._payloads)
        self._view.say(f"the last {self._held_back:,} orders enqueued")
        self._held_back = 0

    def _enqueue(self, queue: RedisStreamsQueue, payloads: Iterator[dict[str, Any]]) -> None:
        while batch := list(islice(payloads, _ENQUEUE_BATCH)):
            queue.enqueue_many(batch)

    def _wait_for_all(self, queue: RedisStreamsQueue, board: Board, crew: Crew) -> None:
        """Let nobody read before all are there: the first could be through before the one to be killed has come."""
        self._begun = self._progressed = time.monotonic()
        while True:
            snapshot = self._look(queue, board, crew)
            self._view.show(snapshot)
            if all(worker.state is State.WAITING for worker in snapshot.workers):
                break
            # One that has ended will not come; one that still starts only needs time.
            self._refuse_to_hang(snapshot, crew, 0.0 if crew.fallen() else _START_S)
            time.sleep(_LOOK_S)
        self._view.say(f"{len(crew.members)} worker processes, up to {BATCH} messages in hand each")
        board.call = Call(EVERYBODY)

    def _watch(self, queue: RedisStreamsQueue, board: Board, crew: Crew, faults: Faults) -> float:
        """Look until everything is acknowledged; return how long the workers needed."""
        started = time.monotonic()
        while True:
            snapshot = self._look(queue, board, crew)
            self._view.show(snapshot)
            # Only after a look that Redis answered: the last deed may have been to kill it, and the connection with it.
            if self._held_back and faults.wants_the_rest and snapshot.waiting is not None:
                self._enqueue_the_last(queue)
            for sentence in faults.step(snapshot, crew, board):
                self._view.say(sentence)
            if snapshot.settled:
                return time.monotonic() - started
            self._refuse_to_hang(snapshot, crew)
            time.sleep(_LOOK_S)

    def _look(self, queue: RedisStreamsQueue, board: Board, crew: Crew) -> Snapshot:
        # The backlog first: once it says that all is settled, the rows tell everything that settled it.
        try:
            backlog = queue.backlog()
        except QueueError:  # the chaos has just killed the server; the next look finds it again
            backlog = Backlog(length=self._plan.orders, pending=self._last.pending, lag=None, oldest_age_s=None)
        rows = [board.read(row) for row in range(len(crew.members))]
        snapshot = Snapshot(
            elapsed_s=time.monotonic() - self._begun,
            total=self._plan.orders,
            handled=sum(row.handled - row.duplicates for row in rows),
            pending=backlog.pending,
            waiting=backlog.lag,
            held_back=self._held_back,
            duplicates=sum(row.duplicates for row in rows),
            recovered=sum(row.recovered for row in rows),
            workers=tuple(
                WorkerLine(
                    name=member.job.name,
                    pid=row.pid,
                    state=State(row.state),
                    alive=member.alive,
                    handled=row.handled,
                    recovered=row.recovered,
                    in_hand=row.in_hand,
                )
                for member, row in zip(crew.members, rows, strict=True)
            ),
        )
        if snapshot.progress != self._last.progress:
            self._progressed = time.monotonic()
        self._last = snapshot
        return snapshot

    def _refuse_to_hang(self, snapshot: Snapshot, crew: Crew, patience_s: float = _STUCK_S) -> None:
        waited_s = time.monotonic() - self._progressed
        if waited_s > patience_s:
            raise CommandError(
                f"no worker got anything done for {waited_s:.0f} s; {snapshot.handled:,} of {snapshot.total:,} orders "
                f"are done. {crew.last_words()}",
                fix="run it again with fewer --orders, and with --debug",
                exit_code=FAILED,
            )

    def _sum_up(self, queue: RedisStreamsQueue, rows: list[Row], faults: Faults, seconds: float) -> Ledger:
        backlog = queue.backlog()
        store = self._stage.store
        processed, repeated = store.count_orders()
        return Ledger(
            enqueued=self._plan.orders,
            processed=processed,
            repeated=repeated,
            deliveries=sum(row.handled for row in rows),
            duplicates=sum(row.duplicates for row in rows),
            recovered=sum(row.recovered for row in rows),
            kills=faults.kills,
            restarts=faults.restarts,
            # The group's lag is unknown only after deletions in the middle, and nobody deletes here.
            unsettled=backlog.pending + (backlog.lag or 0),
            money_expected=self._plan.balances(),
            money_found=store.balances(),
            seconds=seconds,
        )
