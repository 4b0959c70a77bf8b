"""Hosts that run messages with keys and are killed (kill -9) around every step of a turn, again and again.

The test of the same folder runs it as a program. A host kills itself before or after the effect, before the
acknowledgement that ends a turn is sent, after the server has carried it out, and around retries, moves and emits.
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

from conquiet.errors import LifecycleError
from conquiet.processor import JobContext, Processor, ProcessorSettings, RetryPolicy
from conquiet.processor.scripts import Script
from conquiet.processor.settler import ProcessorSettler
from conquiet.runtime import RuntimeSettings
from conquiet.runtime.acknowledger import AckBatch

CHANCE = 0.02
POINTS = (
    "before effect", "after effect", "before acknowledgement", "after acknowledgement", "before retry", "after retry",
    "after promote_due",
)  # fmt: skip

record = Recorder("")

EFFECT = """
if redis.call('SADD', KEYS[1], ARGV[1]) == 1 then redis.call('RPUSH', KEYS[2], ARGV[1]) end
local held = 0
for _, row in ipairs(redis.call('XPENDING', KEYS[3], 'processor', '-', '+', 1000)) do
  local entry = redis.call('XRANGE', KEYS[3], row[1], row[1])[1]
  if entry and string.find(entry[2][2], '"key":"' .. ARGV[2] .. '"', 1, true) then held = held + 1 end
end
if held > 1 then redis.call('INCR', KEYS[4]) end
"""
"""Record an effect once, as an inbox would, and whether two messages of the key are pending.

KEYS: done, effects of a key, stream, where to count keys with two; ARGV: number, key.
"""


def arm(diary: str) -> None:
    """Make the steps deadly."""
    run, exchange, build, confirm = Script.run, ProcessorSettler._exchange, AckBatch.__init__, AckBatch.confirm

    async def deadly_run(self: Script, client: Any, keys: Any, args: Any) -> Any:
        chance = CHANCE if self.name in {"promote_due", "emit"} else 0.0
        reply = await run(self, client, keys, args)
        maybe_die(chance if self.name != "promote_due" or reply[0] else 0.0, diary, f"after {self.name}")
        return reply

    async def deadly_exchange(self: ProcessorSettler, calls: Any) -> Any:
        # One message in seven is retried: without this there would be few kills around a retry.
        maybe_die(3 * CHANCE, diary, "before retry")
        replies = await exchange(self, calls)
        maybe_die(3 * CHANCE, diary, "after retry")
        return replies

    def deadly_build(self: AckBatch, *args: Any) -> None:
        maybe_die(CHANCE, diary, "before acknowledgement")
        build(self, *args)

    def deadly_confirm(self: AckBatch, replies: Any) -> None:
        maybe_die(CHANCE, diary, "after acknowledgement")
        confirm(self, replies)

    Script.run = deadly_run  # type: ignore[method-assign]
    ProcessorSettler._exchange = deadly_exchange  # type: ignore[method-assign]
    AckBatch.__init__ = deadly_build  # type: ignore[method-assign, assignment]
    AckBatch.confirm = deadly_confirm  # type: ignore[method-assign]


def maybe_die(chance: float, diary: str, where: str) -> None:
    if random.random() < chance:
        with open(diary, "a", encoding="utf-8") as book:  # noqa: PTH123 - one short line, appended in one write
            book.write(f"{where}\n")
        record("reached", point=where)
        record("fault", kind="kill -9", target=os.getpid(), point=where)
        os.kill(os.getpid(), signal.SIGKILL)


async def host(url: str, stream: str, diary: str, *, deadly: bool) -> None:
    client: Any = redis.asyncio.Redis.from_url(url)
    processor = Processor(
        client,
        [stream],
        concurrency=4,
        settings=ProcessorSettings(refresh_s=1.0),
        runtime=RuntimeSettings(claim_idle_ms=250, max_deliveries=None, max_reconnects=1_000),
    )
    chance = CHANCE if deadly else 0.0

    @processor.handler("pay", retry=RetryPolicy.fixed(0.02, max_attempts=2))
    async def pay(ctx: JobContext) -> None:
        number = ctx.data["n"]
        message = f"{ctx.key}/{number}"
        record("deliver", id=message, n=ctx.attempt, since=round(ctx.delivery.message.leased_at, 6))
        maybe_die(chance, diary, "before effect")
        if number % 7 == 0 and ctx.attempt == 1:
            record("retry", id=message)
            raise ConnectionError
        places = (f"{stream}:done:{ctx.key}", f"{stream}:effects:{ctx.key}", stream, f"{stream}:two")
        await client.eval(EFFECT, 4, *places, number, ctx.key)
        record("commit", id=message)
        maybe_die(chance, diary, "after effect")

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, processor.stop)
    with contextlib.suppress(LifecycleError):  # a stop was requested before it had begun
        await processor.start()
    await processor.close()
    await client.aclose()


def spawn(url: str, stream: str, diary: str, *, deadly: bool) -> int:
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    code = 1
    try:
        random.seed()
        record.watch(0.06)
        if deadly:
            arm(diary)
        asyncio.run(host(url, stream, diary, deadly=deadly))
        code = 0
    finally:
        os._exit(code)


def main() -> None:
    place, hosts, kills = sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
    record.folder = sys.argv[6]
    wire.note_stream_acks(  # not at the import: the test imports this module, too
        record, lambda messages: [f"{message.data['key']}/{message.data['data']['n']}" for message in messages]
    )
    alive = {spawn(*place, deadly=True) for _ in range(hosts)}
    killed = 0
    while killed < kills:
        pid, status = os.wait()
        alive.discard(pid)
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"a host failed with {status}")
        killed += 1
        alive.add(spawn(*place, deadly=killed < kills))
    for pid in alive:  # messages that still kill
        record("fault", kind="kill -9", target=pid, point="at the end")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    alive = {spawn(*place, deadly=False) for _ in range(hosts)}
    print(killed, flush=True)  # noqa: T201 - to the test
    sys.stdin.readline()
    for pid in alive:
        record("exit", target=pid)
        os.kill(pid, signal.SIGTERM)
    for pid in alive:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
