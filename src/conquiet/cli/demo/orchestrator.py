"""Run the demo: enqueue, wait for all workers, watch, kill, enqueue the last orders, summarize."""

import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any

from redis import Redis

from conquiet.cli.demo.environment import GROUP, DemoEnvironment
from conquiet.cli.demo.fault_injection import FaultInjection, make_fault_injection
from conquiet.cli.demo.plan import DemoPlan
from conquiet.cli.demo.shared_state import ALL, ControlState, DemoWorkerRow, DemoWorkerState, SharedState
from conquiet.cli.demo.summary import Summary
from conquiet.cli.demo.view import DemoSnapshot, DemoView, WorkerLine
from conquiet.cli.demo.worker import BATCH, WorkerSettings
from conquiet.cli.demo.workers import WorkerProcesses
from conquiet.cli.errors import FAILED, CommandError
from conquiet.config import QueueConfig
from conquiet.errors import QueueError
from conquiet.queue import Backlog, RedisStreamsQueue

_POLL_S = 0.1
# The imports of Python take half a minute if ten other processes share the core.
_STUCK_S = 120.0  # includes restarts of killed workers
_START_S = 300.0
_ENQUEUE_BATCH = 1_000


class Orchestrator:
    """Runs one demo in an environment."""

    def __init__(self, plan: DemoPlan, environment: DemoEnvironment, view: DemoView) -> None:
        self._plan = plan
        self._environment = environment
        self._view = view
        self._begun = time.monotonic()
        self._progressed = self._begun
        self._last = DemoSnapshot(total=plan.orders)
        self._payloads = plan.payloads()
        self._held_back = plan.held_back

    def run(self) -> Summary:
        """Run the demo and return its summary.

        Raises:
            CommandError: No worker made progress for two minutes.
        """
        environment, plan = self._environment, self._plan
        self._view.log(f"{environment.redis_name}; orders go to {environment.db_name}")
        names = [f"worker-{number}" for number in range(1, plan.workers + 1)]
        config = QueueConfig(environment.stream, GROUP, "orchestrator")
        with (
            Redis.from_url(environment.redis_url) as client,
            RedisStreamsQueue(client, config) as queue,
            closing(SharedState.create(environment.folder / "state", plan.workers)) as state,
        ):
            settings = [self._worker_settings(name, row) for row, name in enumerate(names)]
            with WorkerProcesses(settings, environment.folder / "workers.log") as workers:
                self._enqueue_all_but_the_last(queue)
                self._wait_for_all(queue, state, workers)
                seconds = self._watch(queue, state, workers, faults := make_fault_injection(plan, environment.server))
            rows = [state.read(row) for row in range(plan.workers)]
            return self._summarize(queue, rows, faults, seconds)

    def _worker_settings(self, name: str, row: int) -> WorkerSettings:
        environment = self._environment
        return WorkerSettings(
            redis_url=environment.redis_url,
            db_url=environment.db_url,
            suffix=environment.suffix,
            stream=environment.stream,
            group=GROUP,
            name=name,
            row=row,
            state=str(environment.folder / "state"),
        )

    def _enqueue_all_but_the_last(self, queue: RedisStreamsQueue) -> None:
        begun = time.monotonic()
        now = self._plan.orders - self._held_back
        self._enqueue(queue, islice(self._payloads, now))
        self._view.log(
            f"{now:,} orders enqueued in {time.monotonic() - begun:.1f} s; "
            f"the last {self._held_back:,} follow after the last kill"
        )

    def _enqueue_the_last(self, queue: RedisStreamsQueue) -> None:
        self._enqueue(queue, self._payloads)
        self._view.log(f"the last {self._held_back:,} orders enqueued")
        self._held_back = 0

    def _enqueue(self, queue: RedisStreamsQueue, payloads: Iterator[dict[str, Any]]) -> None:
        while batch := list(islice(payloads, _ENQUEUE_BATCH)):
            queue.enqueue_many(batch)

    def _wait_for_all(self, queue: RedisStreamsQueue, state: SharedState, workers: WorkerProcesses) -> None:
        """Wait until all workers have started before any reads: the work could end before the victim has started."""
        self._begun = self._progressed = time.monotonic()
        while True:
            snapshot = self._take_snapshot(queue, state, workers)
            self._view.show(snapshot)
            if all(worker.state is DemoWorkerState.WAITING for worker in snapshot.workers):
                break
            # Wait while a worker starts, but not if one has ended.
            self._check_progress(snapshot, workers, 0.0 if workers.ended() else _START_S)
            time.sleep(_POLL_S)
        self._view.log(f"{len(workers.processes)} worker processes, up to {BATCH} messages in flight each")
        state.command = ControlState(ALL)

    def _watch(
        self, queue: RedisStreamsQueue, state: SharedState, workers: WorkerProcesses, faults: FaultInjection
    ) -> float:
        """Poll until everything is acknowledged; return the time that the workers needed."""
        started = time.monotonic()
        while True:
            snapshot = self._take_snapshot(queue, state, workers)
            self._view.show(snapshot)
            # Only after a successful poll of Redis: the last fault may have killed it.
            if self._held_back and faults.releases_last_orders and snapshot.waiting is not None:
                self._enqueue_the_last(queue)
            for sentence in faults.step(snapshot, workers, state):
                self._view.log(sentence)
            if snapshot.settled:
                return time.monotonic() - started
            self._check_progress(snapshot, workers)
            time.sleep(_POLL_S)

    def _take_snapshot(self, queue: RedisStreamsQueue, state: SharedState, workers: WorkerProcesses) -> DemoSnapshot:
        # The backlog first: when it reports that all is settled, the rows are complete.
        try:
            backlog = queue.backlog()
        except QueueError:  # the chaos mode has just killed the server; the next poll reconnects
            backlog = Backlog(length=self._plan.orders, pending=self._last.pending, lag=None, oldest_age_s=None)
        rows = [state.read(row) for row in range(len(workers.processes))]
        snapshot = DemoSnapshot(
            elapsed_s=time.monotonic() - self._begun,
            total=self._plan.orders,
            handled=sum(row.handled - row.duplicates for row in rows),
            pending=backlog.pending,
            waiting=backlog.lag,
            held_back=self._held_back,
            recovered=sum(row.recovered for row in rows),
            workers=tuple(
                WorkerLine(process.settings.name, process.alive, row)
                for process, row in zip(workers.processes, rows, strict=True)
            ),
        )
        if snapshot.progress != self._last.progress:
            self._progressed = time.monotonic()
        self._last = snapshot
        return snapshot

    def _check_progress(self, snapshot: DemoSnapshot, workers: WorkerProcesses, timeout_s: float = _STUCK_S) -> None:
        waited_s = time.monotonic() - self._progressed
        if waited_s > timeout_s:
            raise CommandError(
                f"no worker got anything done for {waited_s:.0f} s; {snapshot.handled:,} of {snapshot.total:,} orders "
                f"are done. {workers.last_error_line()}",
                fix="run it again with fewer --orders, and with --debug",
                exit_code=FAILED,
            )

    def _summarize(
        self, queue: RedisStreamsQueue, rows: list[DemoWorkerRow], faults: FaultInjection, seconds: float
    ) -> Summary:
        backlog = queue.backlog()
        store = self._environment.store
        processed, repeated = store.count_orders()
        return Summary(
            enqueued=self._plan.orders,
            processed=processed,
            repeated=repeated,
            deliveries=sum(row.handled for row in rows),
            duplicates=sum(row.duplicates for row in rows),
            recovered=sum(row.recovered for row in rows),
            kills=faults.kills,
            restarts=faults.restarts,
            # The group's lag is unknown only after deletions, and the demo deletes nothing.
            unsettled=backlog.pending + (backlog.lag or 0),
            money_expected=self._plan.balances(),
            money_found=store.balances(),
            seconds=seconds,
        )
