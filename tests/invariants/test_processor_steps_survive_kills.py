"""kill -9 in the middle of every atomic step of the processor: nothing lost, nothing done twice.

    flaky     fails twice, emits a follow-up, succeeds         reschedule, promote_due, emit
    doomed    fails three times                                reschedule, dead_letter
    revived   dies, is replayed by every host at once          dead_letter, replay
    limited   waits for its rate limit                         reserve_rate
    parked…   is paused from the beginning and resumed later   park, unpark

Forty kills here; ``CONQUIET_TORTURE=1`` makes it a thousand, with some before and after each of the steps.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from tests.invariants.histories import History, Row, redis_facts
from tests.invariants.processor_zygote import PARKED_EVENTS, STEPS

from conquiet.core.json_codec import decode_payload
from conquiet.processor import DeadFilter, DeadLetters, Emitter, NewMessage, Pauses
from conquiet.processor.envelope import from_payload
from conquiet.processor.keys import Keys, keys_of
from conquiet.redis_transport.client import clone_async
from conquiet.testing import wait_until_async

TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
KILLS = 1_000 if TORTURE else 40
KINDS = ("flaky", "doomed", "revived", "limited", "parked")
BATCH = 20
"""Messages emitted at a time, as long as there are kills to come: there is always something to kill in."""


class Storm:
    """The emitted messages, and their visible state on the server."""

    def __init__(self, client: Any, keys: Keys, history: History) -> None:
        self.history = history
        self.client = client
        self.keys = keys
        self.own = clone_async(client)
        self.emitter = Emitter(self.own, keys.stream)
        self.pauses = Pauses(self.own)
        self.emitted: dict[str, set[str]] = {
            kind: set() for kind in ("flaky", "doomed", "revived", "limited", "parked")
        }
        self.held: list[str] = []
        self._rounds = self._parked_events = 0

    async def emit(self) -> None:
        """Emit the next batch: each kind in turn, flaky ones when there is no paused event left."""
        kind = KINDS[self._rounds % len(KINDS)]
        self._rounds += 1
        if kind == "parked" and self._parked_events == PARKED_EVENTS:
            kind = "flaky"
        event = kind
        if kind == "parked":
            event = f"parked{self._parked_events}"
            self._parked_events += 1
            self.held.append(event)
        ids = [f"{kind}-{self._rounds}-{number}" for number in range(BATCH)]
        for one in ids:
            self.history.record("enqueue", id=one, expect="dead" if kind == "doomed" else "effect")
            if kind == "flaky":
                self.history.record("enqueue", id=f"{one}-next")
        await self.emitter.emit_many([NewMessage(event, id=one, delay_s=0.01) for one in ids])
        self.emitted[kind].update(ids)

    async def resume_parked(self) -> None:
        """Resume the events of which everything is parked: once, each message of theirs."""
        for event in list(self.held):
            if await self.client.llen(self.keys.parked_event(event)) >= BATCH:
                self.held.remove(event)
                await self.pauses.resume(self.keys.stream, event=event)

    async def at_work(self) -> int:
        waiting: int = await self.client.zcard(self.keys.delayed)
        try:
            summary = await self.client.xpending(self.keys.stream, "processor")
            groups = await self.client.xinfo_groups(self.keys.stream)
        except redis.ResponseError:
            return waiting
        return waiting + int(summary["pending"]) + int(groups[0]["lag"] or 0)

    async def is_settled(self) -> bool:
        await self.resume_parked()
        done, dead = await self.client.scard(f"{self.keys.stream}:done"), await self.client.xlen(self.keys.dead)
        wanted = sum(map(len, self.emitted.values())) - len(self.emitted["doomed"]) + len(self.emitted["flaky"])
        return bool(done == wanted and dead == len(self.emitted["doomed"]) and not await self.at_work())

    async def entries(self) -> tuple[Counter[tuple[str, int, int, bool]], Counter[str]]:
        """Id, attempt, replays and booked turn of all that was ever in the stream, and which entries were followed."""
        found: Counter[tuple[str, int, int, bool]] = Counter()
        followed: Counter[str] = Counter()
        for entry_id, fields in await self.client.xrange(self.keys.stream):
            payload = decode_payload(fields[b"data"], max_bytes=10**6)
            envelope = from_payload(payload, entry_id=entry_id.decode())
            found[envelope.id, envelope.attempt, envelope.replays, envelope.reserved] += 1
            if "from_entry" in payload:
                followed[str(payload["from_entry"])] += 1
        return found, followed


async def test_no_kill_loses_or_doubles_a_step(
    redis_url: str, key_prefix: str, tmp_path: Path, new_history: Callable[..., History]
) -> None:
    stream = f"{key_prefix}orders"
    client: Any = redis.asyncio.Redis.from_url(redis_url, protocol=2)
    with contextlib.closing(redis.Redis.from_url(redis_url, decode_responses=True)) as plain:
        facts = redis_facts(plain)
    points = [f"{when} {step}" for when in ("before", "after") for step in sorted(STEPS)]
    history = new_history(
        "processor steps killed",
        Row("Processor: retry, dead letter, replay, rate, pause", "none", "one Redis, 3 processes"),
        seed=0,
        # The number of executions of a step is compared below, entry by entry.
        promise={"effects": "at least once", "attempts": True, "commits": True},
        servers=[facts],
        claim_idle_s=0.25,
        points=dict.fromkeys(points, 1) if TORTURE else {},
    )
    for point in points:
        history.record("armed", point=point)
    storm = Storm(client, keys_of(stream), history)
    for number in range(PARKED_EVENTS):
        await storm.pauses.pause(stream, event=f"parked{number}")
    diary = tmp_path / "deaths"
    program = str(Path(__file__).with_name("processor_zygote.py"))
    words = [sys.executable, program, redis_url, stream, str(diary), "3", str(KILLS), str(history.folder)]
    zygote = await asyncio.to_thread(subprocess.Popen, words, stdout=subprocess.PIPE, text=True)
    assert zygote.stdout is not None
    enough = asyncio.create_task(asyncio.to_thread(zygote.stdout.readline))
    try:
        while not enough.done():
            await storm.resume_parked()
            if await storm.at_work() < 3 * BATCH:
                await storm.emit()
            await asyncio.sleep(0.02)
        assert enough.result() == "killed enough\n"
        history.recovery()
        await wait_until_async(storm.is_settled)
        history.record("drained")
    finally:
        zygote.send_signal(signal.SIGTERM)
        out, _ = await asyncio.to_thread(zygote.communicate)

    assert int(out.splitlines()[-1]) >= KILLS
    await _assert_each_step_happened_once(storm)
    deaths = Counter(diary.read_text().splitlines())
    assert sum(deaths.values()) >= KILLS
    if TORTURE:
        steps = STEPS | {"reschedule", "dead_letter"}
        assert {f"{when} {step}" for when in ("before", "after") for step in steps} <= deaths.keys(), deaths
    await storm.own.aclose()
    await client.aclose()


async def _assert_each_step_happened_once(storm: Storm) -> None:
    found, followed = await storm.entries()
    # Every deferred entry follows another entry, and no entry is followed twice.
    assert set(followed.values()) == {1}
    turns = {one: count for one, count in found.items() if one[0] in storm.emitted["limited"]}
    # A limited message is in the stream once, and once more for each time slot it waited for: a slot that a busy
    # machine has missed is reserved again.
    first = {one: count for one, count in turns.items() if not one[3]}
    assert Counter(first) == Counter((one, 1, 0, False) for one in storm.emitted["limited"])
    others = Counter({one: count for one, count in found.items() if one not in turns})
    expected = Counter(
        (one, attempt, 0, False) for one in storm.emitted["flaky"] | storm.emitted["doomed"] for attempt in (1, 2, 3)
    )
    expected += Counter((f"{one}-next", 1, 0, False) for one in storm.emitted["flaky"])
    expected += Counter((one, 1, replays, False) for one in storm.emitted["revived"] for replays in (0, 1))
    expected += Counter({(one, 1, 0, False): 2 for one in storm.emitted["parked"]})  # emitted, and brought back
    assert others == expected

    dead_letters = DeadLetters(storm.own, storm.keys.stream)
    dead = Counter([item.record.id async for item in dead_letters._all(DeadFilter())])
    assert dead == Counter(storm.emitted["doomed"])
    done = [member.decode() for member in await storm.client.smembers(f"{storm.keys.stream}:done")]
    storm.history.record("state", effects=sorted(done))
    storm.history.record("state", dead=sorted(dead.elements()))
    storm.history.record("state", left={"at work": await storm.at_work()})
    assert storm.history.judge()["examples"] == {}
