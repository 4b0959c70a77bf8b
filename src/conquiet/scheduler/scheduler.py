"""The worker that fires due entries. Any number of hosts run it; no host is special.

    poll ──▶ reload what changed ──▶ plan what is due ──▶ fire ──▶ sleep until the next due time
      ▲                                     ▲                               │    │
      │                                     └──────────── due ──────────────┘    │
      └─────────────────────────────── every ``poll_s`` ─────────────────────────┘

Every host tries every tick at its due time; a script lets exactly one through. So there is no leader to elect: if a
host dies, the others fire the same tick at the same moment. See docs/decisions/0019.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from conquiet.core.background import BackgroundWorker, require_stop_event, stop_on
from conquiet.core.clock import SYSTEM_CLOCK, Clock
from conquiet.core.lifecycle import AsyncLifecycle, Health
from conquiet.core.log import FactLogger
from conquiet.core.task_cancellation import cancel_from_any_thread, is_ending
from conquiet.core.validation import require_instance, require_seconds
from conquiet.errors import ConfigurationError, QueueError
from conquiet.metrics.outages import OutageWatch
from conquiet.metrics.registry import SCHEDULER_ERRORS_TOTAL
from conquiet.metrics.safety import count
from conquiet.processor.jobs import JobRecorder
from conquiet.redis_transport.client import AnyRedis
from conquiet.redis_transport.connect_errors import address_of
from conquiet.scheduler.entries import ScheduleEntry
from conquiet.scheduler.schedule_store import Record
from conquiet.scheduler.schedules import DEFAULT_GROUP, Schedules
from conquiet.scheduler.stream_state import RETRY_BACKOFF
from conquiet.scheduler.tick_firer import TickFirer

logger = FactLogger(__name__)

_MS = 1_000
_LONGEST_POLL_S = 1.0
_LONGEST_SILENCE_S = 10.0


class Scheduler(BackgroundWorker, Schedules):
    """Fire entries at their due times, each tick once over all hosts of the group.

    Args:
        redis: A redis-py client, sync or asyncio. It is cloned and never used or closed itself.
        entries: The entries of this program; more can be declared until the start.
        group: Name shared by the hosts that run the same code; groups do not see each other.
        poll_s: How often to check for changes by other hosts, at most a second.
        give_up_after_s: How long Redis may be unavailable before ``run()`` raises.
        job_ttl_s: Record each fired message as a waiting job, as the processor does; use the processor's value.
        clock: Measures the time between two polls; its date is never read.
        now_ms: Replaces the server's TIME in tests.
    """

    name = "Scheduler"

    def __init__(
        self,
        redis: AnyRedis,
        entries: Iterable[ScheduleEntry] = (),
        *,
        group: str = DEFAULT_GROUP,
        poll_s: float = 0.5,
        give_up_after_s: float = 300.0,
        job_ttl_s: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        if require_seconds("poll_s", poll_s) > _LONGEST_POLL_S:
            raise ConfigurationError("poll_s must be at most 1: hosts promise to notice a change within a second")
        self._poll_s = poll_s
        self._give_up_after_s = require_seconds("give_up_after_s", give_up_after_s)
        self._clock = clock
        self._declared: dict[str, ScheduleEntry] = {}
        self._life = AsyncLifecycle("scheduler")
        self._stopped, self._started = asyncio.Event(), asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self._last_round_at: float | None = None
        if isinstance(entries, ScheduleEntry):
            raise ConfigurationError("entries must be a list of ScheduleEntry, got a single one: put it into [ ]")
        for entry in entries:
            self.declare(entry)
        if job_ttl_s is not None:
            require_seconds("job_ttl_s", job_ttl_s)
        super().__init__(redis, group=group, now_ms=now_ms)
        jobs = None if job_ttl_s is None else JobRecorder(self._client, ttl_s=job_ttl_s)
        self._address = address_of(getattr(self._client, "connection_pool", None))
        self._outage = OutageWatch("Redis", f"no schedule of group {group} fires")
        self._firer = TickFirer(self._store, self._declared, group=group, clock=clock, jobs=jobs)

    def declare(self, entry: ScheduleEntry) -> None:
        """Add an entry of this program, before the start. Nothing is sent yet.

        Raises:
            ConfigurationError: Another entry of that name is declared already.
        """
        require_instance("entry", entry, ScheduleEntry)
        if self._declared.setdefault(entry.name, entry) != entry:
            raise ConfigurationError(f"two different entries are declared under the name {entry.name!r}")

    async def undeclared(self) -> list[str]:
        """Return the entries in Redis that code once declared and this program does not: they are not fired here.

        ``remove()`` deletes them.
        """
        _, records = await self._records()
        return sorted(record.entry.name for record in records if not self._firer.is_wanted(record))

    # ------------------------------------------------------------------ lifecycle
    async def run(self, stop_event: asyncio.Event | None = None) -> None:
        """Store the declared entries, then fire until ``stop()`` or until ``stop_event`` is set.

        Raises:
            QueueError: Redis did not reply at the start, or was unavailable for ``give_up_after_s``.
        """
        require_stop_event(stop_event)
        self._life.start()
        logger.info("worker starts: scheduler of group %(group)s", group=self.group, entries=len(self._declared))
        self._work = asyncio.create_task(self._store_and_fire())
        try:
            async with stop_on(stop_event, self._end):
                await self._work
        except asyncio.CancelledError:
            if is_ending(asyncio.current_task()):
                raise
            logger.warning("scheduler stopped by force; its last round was interrupted")
        finally:
            self._outage.close()
            logger.info("worker stopped: scheduler of group %(group)s", group=self.group)
            self._life.finish()

    async def start(self, stop_event: asyncio.Event | None = None) -> None:
        """Call ``run()``."""
        await self.run(stop_event)

    def stop(self) -> None:
        """Request the end: a running round is finished. A second call interrupts it.

        An interrupted round is safe: the next round of any host reads from the pointer whether it took effect. May be
        called from a signal handler or another thread.
        """
        if self._life.request_stop():
            cancel_from_any_thread(self._work)
        self._wake()

    async def close(self) -> None:
        """Stop, wait for the end, and close the connections. May be called twice."""
        self._end()
        await self._life.wait_ended()
        with contextlib.suppress(RuntimeError):  # its event loop is closed
            await Schedules.close(self)

    def health(self) -> Health:
        """Return whether rounds succeed: the last one less than 10 s ago. Never raises; sends nothing."""
        return Health(status=self._life.status, reason=self._problem())

    def _problem(self) -> str:
        if self._last_round_at is None:
            return "starting"
        silence_s = self._clock.monotonic() - self._last_round_at
        return f"no round has succeeded for {silence_s:.0f} s" if silence_s >= _LONGEST_SILENCE_S else ""

    @property
    def abandoned(self) -> int:
        """Handlers that did not end within the grace period: none, a scheduler runs no handlers."""
        return 0

    def _enter(self) -> tuple[Coroutine[Any, Any, None], asyncio.Event]:
        return self.run(), self._started

    async def tick(self) -> int | None:
        """Run one round: fire what is due now and return when the next tick is due (ms), None if never.

        ``run()`` repeats this. Call it directly in tests, or from your own loop.
        """
        now = await self._firer.refresh()
        next_due = await self._firer.fire(now)
        self._last_round_at = self._clock.monotonic()
        return next_due

    # ------------------------------------------------------------------ the loop
    async def _store_and_fire(self) -> None:
        await self._firer.store_declared()
        self._started.set()
        logger.info("worker ready: scheduler of group %(group)s", group=self.group)
        failures, answered_at = 0, self._clock.monotonic()
        while not self._life.is_stopping:
            try:
                # No second round trip while the last poll is fresh: the firing script itself checks what has changed
                # since, and the time.
                fresh = self._until_poll_s() > 0
                wake_at = await (self._firer.fire(int(self._firer.server_now_ms())) if fresh else self.tick())
            except QueueError as error:
                # Counted, logged, and raised after give_up_after_s. After a lost reply a script is not
                # repeated: the next round reads from the pointer whether it took effect.
                failures += 1
                count(SCHEDULER_ERRORS_TOTAL, self.group)
                if self._clock.monotonic() - answered_at > self._give_up_after_s:
                    raise
                self._outage.failed(error, address=self._address)
                await self._sleep(RETRY_BACKOFF.delay_s(failures))
                continue
            failures, answered_at = 0, self._clock.monotonic()
            self._outage.succeeded()
            await self._sleep(self._pause_s(wake_at))

    def _pause_s(self, wake_at: int | None) -> float:
        until_poll_s = max(self._until_poll_s(), 0.0)
        if wake_at is None:
            return until_poll_s
        return min(max((wake_at - self._firer.server_now_ms()) / _MS, 0.0), until_poll_s)

    def _until_poll_s(self) -> float:
        return self._firer.polled_at + self._poll_s - self._clock.monotonic()

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            pass

    def _end(self) -> None:
        """Stop without counting as a call of ``stop()``: a later ``stop()`` does not force."""
        self._life.stop()
        self._wake()

    def _wake(self) -> None:
        if self._work is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._work.get_loop().call_soon_threadsafe(self._stopped.set)

    def _is_live(self, record: Record) -> bool:
        return super()._is_live(record) and self._firer.is_wanted(record)
