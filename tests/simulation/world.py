"""A seeded world: engines as processes that are killed at any ``await``, a model of Redis, and faults between them.

    python scripts/simulate.py 4711             one seed, with its history
    python scripts/simulate.py 1 --seeds 1000   a thousand seeds from 1 on

The engine's code runs unchanged, from its connections (``AsyncRedisConnection``, ``RedisProtocol``) upwards. The
simulation replaces the event loop, the clock, the transport, the server, and the heartbeat's thread: the loop calls its
``beat`` instead. The same seed gives the same trace; its digest is part of the result.
"""

import asyncio
import contextlib
import gc
import hashlib
import json
import logging
import random
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import check_history
import history_records
from tests.simulation.event_loop import CURRENT, NothingLeftError, Process, SimulatedLoop
from tests.simulation.network import Network, SimulatedTopology
from tests.simulation.redis_model import RedisModel

from conquiet.core.backoff import Backoff
from conquiet.errors import QueueError
from conquiet.runtime import assembly, engine, heartbeat
from conquiet.runtime.engine import Engine
from conquiet.runtime.executor import HandlerExecutor
from conquiet.runtime.name_reservation import RENEW_S
from conquiet.runtime.settings import RuntimeSettings

STREAM, GROUP = "work", "processor"
CLAIM_IDLE_MS = 900
FAULTS_S = 12.0
RECOVERY_S = 60.0


class SimulatedHeartbeat(heartbeat.Heartbeat):
    """The heartbeat, with beats that the loop calls: a thread would have its own schedule."""

    _beating: asyncio.TimerHandle | None = None
    _has_ended = False

    @property
    def is_alive(self) -> bool:
        """See ``Heartbeat``."""
        return not self._has_ended and time.monotonic() - self._last_success < self._settings.claim_idle_s

    def start(self) -> None:
        """See ``Heartbeat``."""
        self._last_success = time.monotonic()
        self._later(self._settings.heartbeat_s)

    def _later(self, pause_s: float) -> None:
        self._beating = asyncio.get_running_loop().call_later(min(pause_s, RENEW_S), self._beat_once)

    def _beat_once(self) -> None:
        pause_s = self._settings.heartbeat_s
        try:
            self.beat(time.monotonic())
            if (taken := self._name.renew(self._servers.client)) is not None:
                self._callbacks.name_taken(taken)
            self._last_success = time.monotonic()
        except QueueError as error:
            self._callbacks.failed(error)
            pause_s /= 4
        if not self._has_ended:
            self._later(pause_s)

    async def stop(self, *, timeout_s: float) -> None:
        """See ``Heartbeat``."""
        del timeout_s
        self._has_ended = True
        if self._beating is not None:
            self._beating.cancel()


@dataclass(slots=True)
class Result:
    """The result of one seed.

    Attributes:
        trace: Digest of everything that happened, in order.
        summary: The checker's judgement.
    """

    seed: int
    trace: str
    steps: int
    summary: dict[str, Any]
    lines: list[dict[str, Any]] = field(default_factory=list)

    @property
    def anomalies(self) -> dict[str, int]:
        """Return the anomalies by name."""
        found: dict[str, int] = self.summary["anomalies"]
        return found


class World:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.loop = SimulatedLoop(self.rng.getrandbits(32))
        self.loop.on_kill = self._kill
        self.loop.set_exception_handler(self._fail)
        self.model = RedisModel(lambda: int(self.loop.time() * 1000))
        self.network = Network(self.loop, self.model, self.rng, self.note)
        self._trace = hashlib.sha256()
        self.lines: list[dict[str, Any]] = []
        self.faulty = True
        self.engines = self.rng.choice([1, 2, 2, 3])
        self.messages = self.rng.randint(5, 30)
        self.kills = self.rng.choice([0, 2, 6, 12])
        self.losses = self.rng.choice([0.0, 0.0, 0.01, 0.04])
        self.slowness = self.rng.choice([0.0, 0.0, 0.02])
        self.cuts = self.rng.choice([0, 0, 2, 5])
        self.stops = self.rng.choice([0, 0, 2])
        self.fails = self.rng.choice([0.0, 0.0, 0.1])
        self.concurrency = self.rng.choice([1, 3, 8])
        self.kept_names = self.rng.random() < 0.15
        self._number = 0
        self._over = False
        self._engines: dict[str, Engine] = {}
        self.failed: list[str] = []

    # ------------------------------------------------------------ what is written down
    def note(self, op: str, **fields: Any) -> None:
        """Add to the trace; everything but commands is also part of the history."""
        line = {"op": op, "t": round(self.loop.time() - 1_000.0, 6), **fields}
        self._trace.update(json.dumps(line, sort_keys=True).encode())
        if op != "command":
            self.lines.append({"p": "world", **line})

    def _fail(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Fail the seed because of an error of a callback, such as a heartbeat that has ended."""
        self.failed.append(f"{context['message']}: {context.get('exception')!r}")

    def _kill(self, process: Process) -> None:
        self.note("fault", kind="kill -9", target=process.name)
        process.kill()

    # ------------------------------------------------------------ the processes
    async def _handle(self, message: Any, ctx: Any) -> None:
        number = message.data["n"]
        name = _name_of_process()
        self.note("deliver", id=number, n=ctx.delivery_count, p=name)
        for _ in range(self.rng.choice([0, 0, 1, 1, 2, 5])):
            await asyncio.sleep(self.rng.choice([0.0, 0.001, 0.05, 0.5]))
        if self.rng.random() < self.fails:
            self.note("retry", id=number, p=name)
            raise ValueError
        self.note("effect", id=number, p=name)

    async def _life(self, process: Process) -> None:
        """Be one process: an engine until it is stopped."""

        def no_threads() -> Any:
            raise AssertionError

        executor = HandlerExecutor(self._handle, None, None, threads=no_threads, group=GROUP)
        settings = RuntimeSettings(
            block_ms=500,
            claim_idle_ms=CLAIM_IDLE_MS,
            max_deliveries=None,
            grace_s=5.0,
            max_reconnects=1_000,
            reconnect=Backoff(base_s=0.05, cap_s=0.5),
            prefetch=self.concurrency,
        )
        made = Engine(
            streams=(STREAM,),
            redis=process,  # type: ignore[arg-type]  # becomes a SimulatedTopology
            executor=executor,
            concurrency=self.concurrency,
            group=GROUP,
            consumer_id=process.name.split("/")[0] if self.kept_names else process.name,
            settings=settings,
        )
        self._engines[process.name] = made
        try:
            await made.start()
        except QueueError as error:
            self.note("error", text=type(error).__name__, p=process.name)
        self.note("exit", target=process.name)

    async def _keep_running(self, place: int) -> None:
        """Start a process, and the next one when it has ended, as a supervisor would."""
        while not self._is_over():
            self._number += 1
            process = Process(f"engine{place}/{self._number}")
            if self.faulty and self.kills > 0:
                self.kills -= 1
                process.fuse = int(self.rng.expovariate(1 / 400)) + 1
            task = self.loop.spawn(process, self._life(process))
            await self._watch(process, task)
            if self._is_over():
                await self._stop(process, task)
                return
            if task.done() and process.is_alive and (error := task.exception()) is not None:
                self.failed.append(f"{process.name}: {error!r}")
                return
            await asyncio.sleep(self.rng.uniform(0.0, 0.3))

    def _is_over(self) -> bool:
        return self._over

    async def _watch(self, process: Process, task: "asyncio.Task[None]") -> None:
        while process.is_alive and not task.done() and not self._over:
            await asyncio.sleep(0.1)
            if not self.faulty:
                process.fuse = None

    async def _stop(self, process: Process, task: "asyncio.Task[None]") -> None:
        if process.is_alive:
            self._engines[process.name].stop()
            await asyncio.wait([task], timeout=30)
            if not task.done():
                self.failed.append(f"{process.name} does not stop")

    # ------------------------------------------------------------ the storm
    async def _produce(self) -> None:
        for number in range(self.messages):
            self.note("enqueue", id=number)
            self.model.execute([b"XADD", STREAM.encode(), b"*", b"data", json.dumps({"n": number}).encode()])
            self.network.wake()
            await asyncio.sleep(self.rng.choice([0.0, 0.0, 0.01, 0.4]))

    async def _disturb(self) -> None:
        """Cut connections and stop engines, now and then."""
        for _ in range(self.cuts + self.stops):
            await asyncio.sleep(self.rng.uniform(0.1, 3.0))
            alive = [one for one in self._engines if not self._engines[one].status.name.startswith("STOP")]
            if self.cuts > 0 and self.rng.random() < 0.6:
                self.cuts -= 1
                self.note("fault", kind="all connections cut", scope="server", until=round(self.loop.time() - 999.0, 6))
                self.network.cut()
            elif alive and self.stops > 0:
                self.stops -= 1
                name = self.rng.choice(sorted(alive))
                self.note("fault", kind="SIGTERM", target=name, charges=False)
                self._engines[name].stop()

    def _left(self) -> dict[str, int]:
        stream = self.model.streams[STREAM.encode()]
        group = stream.groups.get(GROUP.encode())
        if group is None:
            return {"pending": 0, "unread": len(stream.entries)}
        return {"pending": len(group.pending), "unread": sum(one > group.last for one in stream.entries)}

    async def _run(self) -> None:
        self.network.loss, self.network.slow = self.losses, self.slowness
        producing = asyncio.create_task(self._produce())
        keepers = [asyncio.create_task(self._keep_running(place)) for place in range(self.engines)]
        disturbing = asyncio.create_task(self._disturb())
        await producing
        await asyncio.wait([disturbing], timeout=FAULTS_S)
        disturbing.cancel()
        await asyncio.sleep(self.rng.uniform(0.0, 3.0))
        self.faulty, self.network.loss, self.network.slow = False, 0.0, 0.0
        self.note("phase", name="recovery")
        deadline = self.loop.time() + RECOVERY_S
        while any(self._left().values()) and self.loop.time() < deadline:  # noqa: ASYNC110 - the server reports no more
            await asyncio.sleep(0.5)
        if not any(self._left().values()):
            self.note("drained")
        self.note("state", left=self._left())
        self._over = True
        await asyncio.gather(*keepers)

    def run(self) -> Result:
        """Live through it, and judge."""
        header = {
            "op": "header", "v": 1, "storm": f"simulation {self.seed}", "seed": self.seed, "recovery_s": RECOVERY_S,
            "promise": {"effects": "at least once", "attempts": True},
        }  # fmt: skip
        try:
            self.loop.run_until_complete(self._run())
        except NothingLeftError:
            self.failed.append("deadlock: nothing is left to run")
        self.note("end")
        judged = history_records.parse(map(json.dumps, [header, *self.lines]))
        judged.problems += self.failed
        summary = check_history.judge(judged)
        return Result(self.seed, self._trace.hexdigest(), self.loop.steps, summary, [header, *self.lines])

    def close(self) -> None:
        """Forget everything. Warnings of killed coroutines that are collected are ignored."""
        self.loop._ready.clear()  # type: ignore[attr-defined]
        self.loop._scheduled.clear()  # type: ignore[attr-defined]
        with mock.patch.object(sys, "unraisablehook"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._engines.clear()
            self.loop.close()
            self.loop.forget()
            del self.loop.on_kill, self.network, self.loop
            gc.collect()
            gc.collect()


class NoHousekeeping:
    """Replaces the thread of the housekeeping, which does not live on virtual time."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def start(self) -> None:
        """See ``StreamHousekeeper``."""

    async def aclose(self) -> None:
        """See ``StreamHousekeeper``."""


def _name_of_process() -> str:
    process = CURRENT.get()
    assert process is not None
    return process.name


@contextlib.contextmanager
def simulated(world: World) -> Iterator[None]:
    """Let the engine see the world's clock, chance and server."""

    def topology(process: Any, **_: Any) -> SimulatedTopology:
        return SimulatedTopology(world.network, process)

    state = random.getstate()
    random.seed(world.seed)
    with (
        mock.patch.object(engine, "topology_of", topology),
        mock.patch.object(engine, "StreamHousekeeper", NoHousekeeping),
        mock.patch.object(assembly, "Heartbeat", SimulatedHeartbeat),
        mock.patch.object(time, "monotonic", world.loop.time),
        mock.patch.object(time, "time", world.loop.time),
    ):
        try:
            yield
        finally:
            random.setstate(state)


def live(seed: int) -> Result:
    """Run one seed. Nothing is left behind, and no log is written."""
    world = World(seed)
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    collecting = gc.isenabled()
    gc.disable()  # a collection at a random moment would close coroutines of killed processes
    try:
        with simulated(world):
            return world.run()
    finally:
        world.close()
        logging.disable(disabled)
        if collecting:
            gc.enable()
