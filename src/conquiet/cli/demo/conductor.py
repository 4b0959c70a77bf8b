"""The course of the demo: enqueue, watch, kill, watch on, sum up."""

import time
from contextlib import closing
from itertools import islice

from redis import Redis

from conquiet.cli.demo.board import Board, Row, State
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
_STUCK_S = 30.0
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

    def run(self) -> Ledger:
        """Carry the demo out and return its ledger.

        Raises:
            CommandError: It got stuck: for half a minute no worker got anything done.
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
                self._enqueue(queue)
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

    def _enqueue(self, queue: RedisStreamsQueue) -> None:
        begun = time.monotonic()
        payloads = self._plan.payloads()
        while batch := list(islice(payloads, _ENQUEUE_BATCH)):
            queue.enqueue_many(batch)
        self._view.say(f"{self._plan.orders:,} orders enqueued in {time.monotonic() - begun:.1f} s")

    def _watch(self, queue: RedisStreamsQueue, board: Board, crew: Crew, faults: Faults) -> float:
        """Look until everything is acknowledged; return how long the workers needed."""
        self._begun = self._progressed = time.monotonic()
        started = None
        while True:
            snapshot = self._look(queue, board, crew)
            if started is None and any(worker.state == State.WORKING for worker in snapshot.workers):
                started = time.monotonic()
                self._view.say(f"{len(crew.members)} worker processes, up to {BATCH} messages in hand each")
            self._view.show(snapshot)
            for sentence in faults.step(snapshot, crew):
                self._view.say(sentence)
            if snapshot.settled:
                return time.monotonic() - (started or self._begun)
            self._refuse_to_hang(snapshot, crew)
            time.sleep(_LOOK_S)

    def _look(self, queue: RedisStreamsQueue, board: Board, crew: Crew) -> Snapshot:
        rows = [board.read(row) for row in range(len(crew.members))]
        try:
            backlog = queue.backlog()
        except QueueError:  # the chaos has just killed the server; the next look finds it again
            backlog = Backlog(length=self._plan.orders, pending=self._last.pending, lag=None, oldest_age_s=None)
        snapshot = Snapshot(
            elapsed_s=time.monotonic() - self._begun,
            total=self._plan.orders,
            handled=sum(row.handled - row.duplicates for row in rows),
            pending=backlog.pending,
            waiting=backlog.lag,
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
        if snapshot.handled != self._last.handled:
            self._progressed = time.monotonic()
        self._last = snapshot
        return snapshot

    def _refuse_to_hang(self, snapshot: Snapshot, crew: Crew) -> None:
        if time.monotonic() - self._progressed > _STUCK_S:
            raise CommandError(
                f"no worker got anything done for {_STUCK_S:g} s; {snapshot.handled:,} of {snapshot.total:,} orders "
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
