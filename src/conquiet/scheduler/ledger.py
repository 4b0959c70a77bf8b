"""What all hosts share about a group's entries, kept in Redis. Commands and replies; no decisions.

    <group>:schedules                          set: the streams that have entries
    {<stream>}:schedule:<group>:entries        hash: name → definition
    {<stream>}:schedule:<group>:state          hash: epoch, version, and per entry rev:<name> when:<name>
                                               origin:<name> last:<name> fire:<name> fired:<name>
                                               missed:<name> paused:<name> moving:<name>

``last`` is the pointer: every tick up to it is fired or missed. ``version`` rises with each change by a person
or a deploy (not with fires), so that hosts notice it by one small read. ``epoch`` tells a ledger that was lost
and begun anew from one that changed. All keys of a stream lie in its cluster slot, so a tick is claimed and
emitted by one script; the set of streams is only a directory and is written before anything it points to.
"""

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError, ResponseError

from conquiet.errors import ConfigurationError, QueueError
from conquiet.kernel.cancellation import heeding_cancellation
from conquiet.processor.keys import keys_of
from conquiet.processor.scripts import Arg
from conquiet.queue.faults import translate
from conquiet.scheduler import records
from conquiet.scheduler.catch_up import Plan
from conquiet.scheduler.entries import Once, Origin, ScheduleEntry, from_ms
from conquiet.scheduler.scripts import script

# One script call stays short for the server's other clients.
_PLANS_PER_CALL = 100
_BYTES_PER_CALL = 4 * 1024 * 1024


_NO_VERSION = -2
"""Neither the server's nor that of ``NO_MARK``."""


class Declared(Enum):
    """What became of an entry that was to be stored."""

    ADDED = "added"
    CHANGED = "changed"
    SAME = "same"
    EXISTS = "exists"
    IN_CODE = "in-code"


class Verdict(Enum):
    """What became of a plan. Only DONE did anything."""

    DONE = "done"
    STALE = "stale"
    EARLY = "early"
    PAUSED = "paused"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Record:
    """One entry as the ledger knows it. Times in milliseconds since the epoch."""

    entry: ScheduleEntry
    revision: str
    origin: Origin
    decided: int
    last_fire: int | None
    fired: int
    missed: int
    paused_since: int | None


@dataclass(frozen=True, slots=True)
class Mark:
    """Says whether a stream's part of the ledger has changed (version) or was lost (epoch)."""

    epoch: str | None
    version: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a frozen entry stood on the stream it moves from. ``times`` is the digest of its times."""

    times: str
    decided: int
    paused_since: int | None


NO_MARK = Mark(None, -1)
"""Equal to no mark the server gives."""


@dataclass(frozen=True, slots=True)
class Glance:
    """The server's time, and what there is to know about changes. ``refused`` are streams it does not tell us about."""

    now: int
    marks: dict[str, Mark]
    refused: dict[str, QueueError]


@dataclass(frozen=True, slots=True)
class Order:
    """A plan to be carried out, with the messages of its ticks."""

    record: Record
    plan: Plan
    messages: Sequence[bytes]


class Ledger:
    """The ledger of one group, through a client of our own.

    Args:
        client: Sends each command once (see ``queue.client``).
        group: Name shared by the hosts that run the same entries.
        now_ms: Stands in for the server's TIME where a test wants its own.
    """

    def __init__(self, client: redis.asyncio.Redis, group: str, now_ms: Callable[[], int] | None = None) -> None:
        self._client = client
        self._group = group
        self._now_ms = now_ms
        self._parsed: dict[str, dict[bytes, ScheduleEntry]] = {}

    async def glance(self, known: Iterable[str] = ()) -> Glance:
        """Return the time and the marks of all streams, in one round trip while no stream is new."""
        streams = sorted(known)
        pipeline = self._client.pipeline(transaction=False)
        pipeline.time()
        pipeline.smembers(self._directory)
        for stream in streams:
            pipeline.hmget(self._state(stream), "epoch", "version")
        time, members, *replies = await self._send(pipeline, refusals_too=True)
        for reply in (time, members):
            if isinstance(reply, ResponseError):
                raise self._failure(reply) from reply
        marks = dict(zip(streams, replies, strict=True))
        unknown = sorted({_text(member) for member in members if _can_be_a_stream(_text(member))} - marks.keys())
        if unknown:
            pipeline = self._client.pipeline(transaction=False)
            for stream in unknown:
                pipeline.hmget(self._state(stream), "epoch", "version")
            marks |= zip(unknown, await self._send(pipeline, refusals_too=True), strict=True)
        now = time[0] * 1_000 + time[1] // 1_000 if self._now_ms is None else self._now_ms()
        refused = {stream: mark for stream, mark in marks.items() if isinstance(mark, ResponseError)}
        return Glance(
            now,
            {stream: _mark(mark) for stream, mark in marks.items() if stream not in refused},
            {stream: self._failure(error, stream) for stream, error in refused.items()},
        )

    async def load(self, stream: str) -> tuple[Mark, list[Record], list[str]]:
        """Return a stream's mark, its entries, and the names of those this release cannot read."""
        pipeline = self._client.pipeline(transaction=True)  # both hashes as of one moment
        pipeline.hgetall(self._entries(stream))
        pipeline.hgetall(self._state(stream))
        definitions, raw = await self._send(pipeline, stream)
        state = {_text(field): _text(value) for field, value in raw.items()}
        found: list[Record] = []
        unreadable: list[str] = []
        # One entry that changed makes us read all of them again; parsing only the new ones keeps that cheap.
        before, parsed = self._parsed.get(stream, {}), dict[bytes, ScheduleEntry]()
        for name, definition in sorted((_text(name), text) for name, text in definitions.items()):
            try:
                entry = parsed[definition] = before.get(definition) or records.load(definition)
                found.append(_record(entry, name, stream, state))
            except (records.RecordError, KeyError, ValueError, OverflowError):
                unreadable.append(name)
        self._parsed[stream] = parsed
        return Mark(state.get("epoch"), _version(state.get("version"))), found, unreadable

    async def declare(
        self,
        entry: ScheduleEntry,
        origin: Origin,
        *,
        replace_existing: bool = False,
        past_is_done: bool = False,
        place: Place | None = None,
    ) -> Declared:
        """Store an entry unless the ledger has it already.

        Args:
            entry: What to store.
            origin: Who wants it.
            replace_existing: Take the place of a different entry of that name.
            past_is_done: Also a single moment that is past was fired or missed: the ledger that knew it is lost.
            place: Where it stood on the stream it comes from: its pause is kept, and its pointer if its times are.
        """
        times = records.times_digest(entry)
        pipeline = self._client.pipeline(transaction=False)
        pipeline.sadd(self._directory, entry.stream)
        await self._send(pipeline, entry.stream)
        answer = await self._run(
            "declare",
            entry.stream,
            self._now(),
            entry.name,
            records.dump(entry),
            records.revision(entry),
            times,
            origin.value,
            int(isinstance(entry.when, Once) and not past_is_done),
            int(replace_existing),
            uuid.uuid4().hex,
            int(place is not None),
            place.decided if place is not None and place.times == times else "",
            "" if place is None or place.paused_since is None else place.paused_since,
        )
        return Declared(answer.decode())

    async def remove(self, stream: str, name: str) -> bool:
        """Forget an entry and everything about it. False if it was not there."""
        return bool(await self._run("control", stream, self._now(), "remove", name, 0))

    async def freeze(self, record: Record) -> Place | None:
        """Hold an entry that moves to another stream, on all hosts, and say where it stands. None if it is gone.

        It stays frozen until it is removed, or declared in this place again.
        """
        answer = await self._run("control", record.entry.stream, self._now(), "freeze", record.entry.name, 0)
        if not answer:
            return None
        times, decided, paused_since = (part.decode() for part in answer)
        return Place(times, int(decided), _optional(paused_since or None))

    async def pause(self, record: Record) -> bool:
        """Hold an entry on all hosts, from this moment on. False if it is paused or gone."""
        return bool(await self._run("control", record.entry.stream, self._now(), "pause", record.entry.name, 0))

    async def resume(self, record: Record, decided: int) -> bool:
        """Let an entry go on with the ticks after ``decided``, or after its pointer if that is further.

        False if it is not paused.
        """
        return bool(await self._run("control", record.entry.stream, self._now(), "resume", record.entry.name, decided))

    async def carry_out(self, stream: str, orders: Sequence[Order]) -> list[tuple[Order, Verdict, int, int]]:
        """Fire the orders of one stream. Returns each with its verdict, the entry's pointer and the server's time."""
        results: list[tuple[Order, Verdict, int, int]] = []
        for chunk in _chunks(orders):
            arguments = [argument for order in chunk for argument in _arguments(order)]
            answer = await self._run("fire", stream, self._now(), *arguments)
            now = int(answer[0])
            verdicts = zip(chunk, answer[1::2], answer[2::2], strict=True)
            results += [(order, Verdict(word.decode()), int(pointer or 0), now) for order, word, pointer in verdicts]
        return results

    @property
    def _directory(self) -> str:
        return f"{self._group}:schedules"

    def _state(self, stream: str) -> str:
        return f"{keys_of(stream).base}:schedule:{self._group}:state"

    def _entries(self, stream: str) -> str:
        return f"{keys_of(stream).base}:schedule:{self._group}:entries"

    def _now(self) -> str:
        return "" if self._now_ms is None else str(self._now_ms())

    async def _run(self, name: str, stream: str, *arguments: Arg) -> Any:
        keys = [self._state(stream), self._entries(stream)]
        if name == "fire":
            keys.insert(1, stream)
        return await script(name).call(self._client, keys, arguments, stream=stream, group=self._group)

    async def _send(self, pipeline: Any, stream: str = "*", *, refusals_too: bool = False) -> list[Any]:
        try:
            with heeding_cancellation():
                replies: list[Any] = await pipeline.execute(raise_on_error=not refusals_too)
        except (RedisError, OSError) as error:
            raise self._failure(error, stream) from error
        return replies

    def _failure(self, error: RedisError | OSError, stream: str = "*") -> QueueError:
        return translate(error, stream=stream, group=self._group, command="schedule")


def _mark(reply: list[bytes | None]) -> Mark:
    epoch, version = reply
    return Mark(None if epoch is None else _text(epoch), _version(version))


def _text(raw: bytes) -> str:
    """What we wrote is UTF-8. What somebody else wrote beside it is his name for it, and not the end of us."""
    return raw.decode(errors="backslashreplace")


def _can_be_a_stream(name: str) -> bool:
    try:
        keys_of(name)
    except ConfigurationError:
        return False
    return True


def _version(text: bytes | str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return _NO_VERSION


def _record(entry: ScheduleEntry, name: str, stream: str, state: dict[str, str]) -> Record:
    if entry.name != name or entry.stream != stream:
        raise ValueError("filed under another name or stream")
    return Record(
        entry=entry,
        revision=state[f"rev:{name}"],
        origin=Origin(state[f"origin:{name}"]),
        decided=_moment(state[f"last:{name}"]),
        last_fire=_optional(state.get(f"fire:{name}")),
        fired=int(state.get(f"fired:{name}", 0)),
        missed=int(state.get(f"missed:{name}", 0)),
        paused_since=_optional(state.get(f"paused:{name}")),
    )


def _optional(text: str | None) -> int | None:
    return None if text is None else _moment(text)


def _moment(text: str) -> int:
    moment = int(text)
    from_ms(moment)  # ValueError if it is none
    return moment


def moved(record: Record, pointer: int) -> Record:
    """Return the record with its pointer where the server says it is."""
    return replace(record, decided=pointer)


def _arguments(order: Order) -> Iterable[Arg]:
    entry, plan = order.record.entry, order.plan
    finished = plan.wake_at is None and order.record.origin is Origin.RUNTIME
    yield from (entry.name, order.record.revision, order.record.decided, plan.decided)
    yield max((entry.fire_at(due) for due in plan.fire), default=0)
    yield from (plan.missed, int(finished), plan.fire[-1] if plan.fire else "", len(order.messages))
    yield from order.messages


def _chunks(orders: Sequence[Order]) -> Iterable[list[Order]]:
    chunk: list[Order] = []
    size = 0
    for order in orders:
        weight = sum(map(len, order.messages))
        if chunk and (len(chunk) >= _PLANS_PER_CALL or size + weight > _BYTES_PER_CALL):
            yield chunk
            chunk, size = [], 0
        chunk.append(order)
        size += weight
    if chunk:
        yield chunk
