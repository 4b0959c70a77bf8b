"""Hosts that are killed (kill -9) in the middle of the processor's atomic steps, again and again.

The test of the same folder runs it as a program. It imports everything once and forks hosts, so that a thousand kills
take a minute. A host kills itself right before a step is sent, or right after the server has carried it out and
before the host knows. The other hosts have to find its work.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
from typing import Any

import redis.asyncio
from tests.invariants import wire
from tests.invariants.recorder import Recorder

from conquiet.errors import LifecycleError, QueueError
from conquiet.processor import DeadFilter, JobContext, Processor, ProcessorSettings, RateLimit, RetryPolicy
from conquiet.processor.scripts import Script, script
from conquiet.runtime import RuntimeSettings

STEPS = {"promote_due", "emit", "park", "unpark", "reserve_rate", "replay"}
"""Steps that are sent alone. The settler sends retries and dead letters together."""

PARKED_EVENTS = 60
CHANCE = 0.04


record = Recorder("")


def arm(diary: str) -> None:
    """Make the steps deadly: by their own method, and by the settler's pipelines."""
    from conquiet.processor.settler import ProcessorSettler

    for step in STEPS:
        script(step)  # a renamed script fails here; otherwise no host would ever be killed in it
    run, exchange = Script.run, ProcessorSettler._exchange

    async def deadly_run(self: Script, client: Any, keys: Any, args: Any) -> Any:
        chance = CHANCE if self.name in STEPS else 0.0
        maybe_die(chance, diary, f"before {self.name}")
        reply = await run(self, client, keys, args)
        # A promotion that moved nothing is not a step to kill at.
        maybe_die(chance if self.name != "promote_due" or reply[0] else 0.0, diary, f"after {self.name}")
        return reply

    async def deadly_exchange(self: ProcessorSettler, calls: Any) -> Any:
        names = "+".join(sorted({call.script.name for call in calls}))
        maybe_die(CHANCE, diary, f"before {names}")
        replies = await exchange(self, calls)
        maybe_die(CHANCE, diary, f"after {names}")
        return replies

    Script.run = deadly_run  # type: ignore[method-assign]
    ProcessorSettler._exchange = deadly_exchange  # type: ignore[method-assign]


def note_delivery(ctx: JobContext) -> None:
    """Record that a handler began, and since when its lease has not been renewed: another host may claim it then."""
    record("deliver", id=ctx.id, n=ctx.attempt, since=round(ctx.delivery.message.leased_at, 6))


def maybe_die(chance: float, diary: str, where: str) -> None:
    if random.random() < chance:
        with open(diary, "a", encoding="utf-8") as book:  # noqa: PTH123 - one short line, appended in one write
            book.write(f"{where}\n")
        record("reached", point=where)
        record("fault", kind="kill -9", target=os.getpid(), point=where)
        os.kill(os.getpid(), signal.SIGKILL)


async def host(url: str, stream: str) -> None:
    client = redis.asyncio.Redis.from_url(url)
    processor = Processor(
        client,
        [stream],
        concurrency=5,
        # The storm reads every entry that was ever written: nothing is trimmed.
        settings=ProcessorSettings(retention=None),
        runtime=RuntimeSettings(claim_idle_ms=250, max_deliveries=None, max_reconnects=1_000),
    )

    async def done(ctx: JobContext) -> None:
        await client.sadd(f"{stream}:done", ctx.id)
        record("commit", id=ctx.id)

    three = RetryPolicy.fixed(0.02, max_attempts=3)

    @processor.handler("flaky", retry=three)
    async def flaky(ctx: JobContext) -> None:
        note_delivery(ctx)
        await asyncio.sleep(0.002)
        if ctx.attempt < 3:
            record("retry", id=ctx.id)
            raise ConnectionError
        await ctx.emit("follow", id=f"{ctx.id}-next")
        await done(ctx)

    @processor.handler("doomed", retry=three)
    async def doomed(ctx: JobContext) -> None:
        note_delivery(ctx)
        record("retry", id=ctx.id)
        raise LookupError

    @processor.handler("revived")
    async def revived(ctx: JobContext) -> None:
        note_delivery(ctx)
        if not ctx.envelope.replays:
            record("retry", id=ctx.id)
            raise LookupError
        await done(ctx)

    async def plain(ctx: JobContext) -> None:
        note_delivery(ctx)
        await done(ctx)

    processor.handler("limited", rate=RateLimit(200))(plain)
    processor.handler("follow")(plain)
    for number in range(PARKED_EVENTS):
        processor.handler(f"parked{number}")(plain)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, processor.stop)
    replaying = asyncio.create_task(replay(processor))
    with contextlib.suppress(LifecycleError):  # stopped before it had begun
        await processor.start()
    replaying.cancel()
    await asyncio.gather(replaying, return_exceptions=True)
    await processor.close()
    await client.aclose()


async def replay(processor: Processor) -> None:
    """Every host brings the same dead letters back, all the time."""
    dead_letters = processor.dead_letters()
    while True:
        with contextlib.suppress(QueueError):
            await dead_letters.replay(DeadFilter(event="revived"))
        await asyncio.sleep(0.05)


def spawn(url: str, stream: str, diary: str, *, deadly: bool) -> int:
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    code = 1
    try:
        random.seed()
        record.watch(0.06)
        if deadly:
            arm(diary)
        asyncio.run(host(url, stream))
        code = 0
    finally:
        os._exit(code)


class Hosts:
    """The hosts that live now, and the stop that reaches every one of them."""

    def __init__(self, *place: str) -> None:
        self._place = place
        self.alive: set[int] = set()
        self.stopping = False

    def add(self, *, deadly: bool) -> None:
        """Start one more unless we are stopping. A stop in between waits until the host is known."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        if not self.stopping:
            self.alive.add(spawn(*self._place, deadly=deadly))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def stop(self, *_: object) -> None:
        self.stopping = True
        for pid in self.alive:
            os.kill(pid, signal.SIGTERM)


def main() -> None:
    wanted, kills = int(sys.argv[4]), int(sys.argv[5])
    record.folder = sys.argv[6]
    # Not at the import: the test imports this module, too.
    wire.note_stream_acks(record, lambda messages: [message.data["id"] for message in messages])
    hosts = Hosts(*sys.argv[1:4])
    signal.signal(signal.SIGTERM, hosts.stop)
    for _ in range(wanted):
        hosts.add(deadly=True)
    killed = 0
    while hosts.alive:
        pid, status = os.wait()
        hosts.alive.discard(pid)
        if os.WIFSIGNALED(status):
            killed += 1
        elif status and not hosts.stopping:
            raise SystemExit(f"a host failed with {status}")
        if not hosts.stopping:
            hosts.add(deadly=killed < kills)
            if killed == kills:
                # The rest are replaced by hosts that live on.
                kills = -1
                print("killed enough", flush=True)  # noqa: T201 - to the test
    print(killed, flush=True)  # noqa: T201 - the same


if __name__ == "__main__":
    main()
