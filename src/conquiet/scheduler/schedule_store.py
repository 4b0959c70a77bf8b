"""The entries of a group in Redis, shared by all hosts. Commands and replies; no decisions.

    <group>:schedules                          set: the streams that have entries
    {<stream>}:schedule:<group>:entries        hash: name → definition
    {<stream>}:schedule:<group>:state          hash: epoch, version, and per entry rev:<name> when:<name>
                                               origin:<name> last:<name> fire:<name> fired:<name>
                                               missed:<name> paused:<name> moving:<name>

``last`` is the pointer: every tick up to it is fired or missed. ``version`` rises with each change by an operator
or a deploy (not with fires), so that hosts notice it by one small read. ``epoch`` differs if the data was lost and
stored again. All keys of a stream lie in its cluster slot, so one script claims and emits a tick; the set of streams
is only a directory and is written before anything it points to.
"""

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from conquiet.core.chunks import chunks
from conquiet.errors import ConfigurationError, QueueError
from conquiet.processor.keys import keys_of
from conquiet.redis_transport.client import AsyncClient
from conquiet.redis_transport.client_commands import command, commands
from conquiet.redis_transport.errors import RedisError, translate
from conquiet.redis_transport.replies import as_mapping, server_ms
from conquiet.redis_transport.scripts import Arg, load_script
from conquiet.scheduler import entry_codec
from conquiet.scheduler.entries import Once, Origin, ScheduleEntry, from_ms
from conquiet.scheduler.misfires import FirePlan

# One script call stays short for the server's other clients.
_PLANS_PER_CALL = 100
_BYTES_PER_CALL = 4 * 1024 * 1024


_UNREADABLE_VERSION = -2
"""Differs from every version of the server and from ``NO_VERSION``."""

_ACTION = "schedule"
_ACTIONS = {
    "declare": "storing a schedule entry",
    "control": "changing a schedule entry",
    "fire": "firing a schedule",
    "load": _ACTION,
}
"""Descriptions of the scripts, for error texts."""


class Declared(Enum):
    """Outcomes of storing an entry."""

    ADDED = "added"
    CHANGED = "changed"
    SAME = "same"
    EXISTS = "exists"
    IN_CODE = "in-code"


class FireResult(Enum):
    """Outcomes of a fire request. Only DONE changed anything."""

    DONE = "done"
    STALE = "stale"
    EARLY = "early"
    PAUSED = "paused"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Record:
    """One stored entry with its state. Times in milliseconds since the epoch."""

    entry: ScheduleEntry
    revision: str
    origin: Origin
    decided: int
    last_fire: int | None
    fired: int
    missed: int
    paused_since: int | None


@dataclass(frozen=True, slots=True)
class Version:
    """Shows whether a stream's entries have changed (version) or were lost (epoch)."""

    epoch: str | None
    version: int


@dataclass(frozen=True, slots=True)
class Position:
    """State of a frozen entry on the stream it moves from. ``times`` is the digest of its times."""

    times: str
    decided: int
    paused_since: int | None


NO_VERSION = Version(None, -1)
"""Equal to no version of the server."""


@dataclass(frozen=True, slots=True)
class ScheduleSnapshot:
    """The server's time and the version of each stream. ``refused``: streams that the server does not show."""

    now: int
    versions: dict[str, Version]
    refused: dict[str, QueueError]


@dataclass(frozen=True, slots=True)
class FireRequest:
    """A plan to fire, with the messages of its ticks."""

    record: Record
    plan: FirePlan
    messages: Sequence[bytes]


class ScheduleStore:
    """Read and change the entries of one group.

    Args:
        client: Sends each command once (see ``redis_transport.client``).
        group: Name shared by the hosts that run the same entries.
        now_ms: Replaces the server's TIME in tests.
    """

    def __init__(self, client: AsyncClient, group: str, now_ms: Callable[[], int] | None = None) -> None:
        self._client = client
        self._group = group
        self._now_ms = now_ms
        self._parsed: dict[str, dict[bytes, ScheduleEntry]] = {}

    async def snapshot(self, known: Iterable[str] = ()) -> ScheduleSnapshot:
        """Return the time and the versions of all streams, in one round trip while no stream is new."""
        streams = sorted(known)
        sent = [("TIME",), ("SMEMBERS", self._directory), *map(self._read_version, streams)]
        time, members, *replies = await self._send(sent)
        for reply in (time, members):
            if isinstance(reply, RedisError | OSError):
                raise self._failure(reply)
        states = dict(zip(streams, replies, strict=True))
        unknown = sorted({_text(member) for member in members if _is_stream_name(_text(member))} - states.keys())
        if unknown:
            states |= zip(unknown, await self._send([*map(self._read_version, unknown)]), strict=True)
        now = server_ms(time) if self._now_ms is None else self._now_ms()
        refused = {stream: reply for stream, reply in states.items() if isinstance(reply, RedisError | OSError)}
        return ScheduleSnapshot(
            now,
            {stream: _version_of(reply) for stream, reply in states.items() if stream not in refused},
            {stream: self._failure(error, stream) for stream, error in refused.items()},
        )

    async def load(self, stream: str) -> tuple[Version, list[Record], list[str]]:
        """Return a stream's version, its entries, and the names of those this release cannot read."""
        definitions, raw = map(as_mapping, await self._run("load", stream))  # both hashes as of one moment
        state = {_text(field): _text(value) for field, value in raw.items()}
        found: list[Record] = []
        unreadable: list[str] = []
        # A change of one entry causes a read of all of them; parsing only the new ones keeps that cheap.
        before, parsed = self._parsed.get(stream, {}), dict[bytes, ScheduleEntry]()
        for name, definition in sorted((_text(name), text) for name, text in definitions.items()):
            try:
                entry = parsed[definition] = before.get(definition) or entry_codec.decode(definition)
                found.append(_record(entry, name, stream, state))
            except (entry_codec.EntryCodecError, KeyError, ValueError, OverflowError):
                unreadable.append(name)
        self._parsed[stream] = parsed
        return Version(state.get("epoch"), _version(state.get("version"))), found, unreadable

    async def declare(
        self,
        entry: ScheduleEntry,
        origin: Origin,
        *,
        replace_existing: bool = False,
        past_is_done: bool = False,
        position: Position | None = None,
    ) -> Declared:
        """Store an entry unless it is stored already.

        Args:
            entry: The entry.
            origin: Whether code declares it or it is added at run time.
            replace_existing: Replace a different entry of that name.
            past_is_done: A one-off time that is past counts as fired: the data that would show it is lost.
            position: Its state on the stream it moves from: the pause is kept, and the pointer if the times are.
        """
        times = entry_codec.times_digest(entry)
        member = ("SADD", self._directory, entry.stream)
        await command(self._client, *member, action=_ACTION, stream=entry.stream, group=self._group)
        answer = await self._run(
            "declare",
            entry.stream,
            self._now(),
            entry.name,
            entry_codec.encode(entry),
            entry_codec.revision(entry),
            times,
            origin.value,
            int(isinstance(entry.when, Once) and not past_is_done),
            int(replace_existing),
            uuid.uuid4().hex,
            int(position is not None),
            position.decided if position is not None and position.times == times else "",
            "" if position is None or position.paused_since is None else position.paused_since,
        )
        return Declared(answer.decode())

    async def remove(self, stream: str, name: str) -> bool:
        """Delete an entry and its state. False if there was none."""
        return bool(await self._run("control", stream, self._now(), "remove", name, 0))

    async def freeze(self, record: Record) -> Position | None:
        """Pause an entry that moves to another stream, on all hosts, and return its state. None if it is gone.

        It stays frozen until it is removed, or declared on this stream again.
        """
        answer = await self._run("control", record.entry.stream, self._now(), "freeze", record.entry.name, 0)
        if not answer:
            return None
        times, decided, paused_since = (part.decode() for part in answer)
        return Position(times, int(decided), _optional(paused_since or None))

    async def pause(self, record: Record) -> bool:
        """Pause an entry on all hosts, from this moment on. False if it is paused or gone."""
        return bool(await self._run("control", record.entry.stream, self._now(), "pause", record.entry.name, 0))

    async def resume(self, record: Record, decided: int) -> bool:
        """Resume an entry with the ticks after ``decided``, or after its pointer if that is later.

        False if it is not paused.
        """
        return bool(await self._run("control", record.entry.stream, self._now(), "resume", record.entry.name, decided))

    async def fire(
        self, stream: str, requests: Sequence[FireRequest]
    ) -> list[tuple[FireRequest, FireResult, int, int]]:
        """Fire the requests of one stream. Return each with its result, the entry's pointer and the server's time."""
        results: list[tuple[FireRequest, FireResult, int, int]] = []
        for chunk in _chunks(requests):
            arguments = [argument for request in chunk for argument in _arguments(request)]
            answer = await self._run("fire", stream, self._now(), *arguments)
            now = int(answer[0])
            replies = zip(chunk, answer[1::2], answer[2::2], strict=True)
            results += [(one, FireResult(word.decode()), int(pointer or 0), now) for one, word, pointer in replies]
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
        script = load_script("conquiet.scheduler", name, _ACTIONS[name])
        return await script.call(self._client, keys, arguments, stream=stream, group=self._group)

    def _read_version(self, stream: str) -> tuple[str, ...]:
        return "HMGET", self._state(stream), "epoch", "version"

    async def _send(self, sent: Sequence[Sequence[Arg]]) -> list[Any]:
        return await commands(self._client, sent, action=_ACTION, stream="*", group=self._group, keep_errors=True)

    def _failure(self, error: RedisError | OSError, stream: str = "*") -> QueueError:
        return translate(error, stream=stream, group=self._group, command=_ACTION)


def _version_of(reply: list[bytes | None]) -> Version:
    epoch, version = reply
    return Version(None if epoch is None else _text(epoch), _version(version))


def _text(raw: bytes) -> str:
    """Decode a key or name. Ours are UTF-8; one written by other code must not stop the scheduler."""
    return raw.decode(errors="backslashreplace")


def _is_stream_name(name: str) -> bool:
    try:
        keys_of(name)
    except ConfigurationError:
        return False
    return True


def _version(text: bytes | str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return _UNREADABLE_VERSION


def _record(entry: ScheduleEntry, name: str, stream: str, state: dict[str, str]) -> Record:
    if entry.name != name or entry.stream != stream:
        raise ValueError("stored under another name or stream")
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
    from_ms(moment)  # ValueError if it is not a date
    return moment


def _arguments(request: FireRequest) -> Iterable[Arg]:
    entry, plan = request.record.entry, request.plan
    finished = plan.wake_at is None and request.record.origin is Origin.RUNTIME
    yield from (entry.name, request.record.revision, request.record.decided, plan.decided)
    yield max((entry.fire_at(due) for due in plan.fire), default=0)
    yield from (plan.missed, int(finished), plan.fire[-1] if plan.fire else "", len(request.messages))
    yield from request.messages


def _chunks(requests: Sequence[FireRequest]) -> Iterable[list[FireRequest]]:
    return chunks(
        requests, lambda one: sum(map(len, one.messages)), max_items=_PLANS_PER_CALL, max_size=_BYTES_PER_CALL
    )
