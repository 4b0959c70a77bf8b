"""A model of the Redis commands that the runtime engine uses, without a server.

Time is given from outside. Scripts are run themselves, by ``lua``. Replies are Python values: bytes, int, None, lists,
``Status`` and ``Refusal``. ``test_redis_model.py`` sends the same random commands to the model and to a real server.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.simulation import lua

Id = tuple[int, int]
ZERO: Id = (0, 0)
MOST: Id = (2**64 - 1, 2**64 - 1)
_AUTOCLAIM_ATTEMPTS = 10


class Refusal(Exception):  # noqa: N818 - a reply, and only here an exception
    """An error reply."""


class Status(bytes):
    """A simple string reply, such as OK."""


@dataclass(slots=True)
class Pending:
    """One row of a group's pending entries list."""

    consumer: bytes
    at_ms: int
    deliveries: int = 1


@dataclass(slots=True)
class Group:
    """One consumer group."""

    last: Id
    pending: dict[Id, Pending] = field(default_factory=dict)
    consumers: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class Stream:
    """One stream, in the order of its ids."""

    entries: dict[Id, list[bytes]] = field(default_factory=dict)
    last: Id = ZERO
    groups: dict[bytes, Group] = field(default_factory=dict)


def parse_id(raw: bytes, *, low: bool = True) -> Id:
    """Return an id as two numbers; without a sequence it means the first or the last of its millisecond."""
    if raw == b"-":
        return ZERO
    if raw == b"+":
        return MOST
    time_ms, dash, number = raw.partition(b"-")
    try:
        return int(time_ms), int(number) if dash else (0 if low else MOST[1])
    except ValueError:
        raise Refusal("ERR Invalid stream ID specified as stream command argument") from None


def format_id(one: Id) -> bytes:
    """Return an id as the server writes it."""
    return b"%d-%d" % one


class RedisModel:
    """The state of a server, and what each command does to it.

    Args:
        now_ms: The server's clock.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.streams: dict[bytes, Stream] = {}
        self._strings: dict[bytes, tuple[bytes, int | None]] = {}
        self._sets: dict[bytes, set[bytes]] = {}
        self._commands: dict[bytes, Callable[..., Any]] = {
            b"XADD": self._xadd, b"XLEN": self._xlen, b"XDEL": self._xdel, b"XACK": self._xack,
            b"XREADGROUP": self._xreadgroup, b"XPENDING": self._xpending, b"XCLAIM": self._xclaim,
            b"XAUTOCLAIM": self._xautoclaim, b"XGROUP": self._xgroup, b"XINFO": self._xinfo, b"GET": self._get,
            b"SET": self._set, b"DEL": self._del, b"PTTL": self._pttl, b"SADD": self._sadd, b"SREM": self._srem,
            b"EVAL": self._eval,
        }  # fmt: skip

    def execute(self, words: list[bytes]) -> Any:
        """Carry out one command and return its reply; a refusal is returned, not raised."""
        command = self._commands.get(words[0].upper())
        if command is None:
            return Refusal(f"ERR unknown command '{words[0].decode()}'")
        try:
            return command(*words[1:])
        except Refusal as refusal:
            return refusal

    # ------------------------------------------------------------ streams
    def _stream(self, key: bytes) -> Stream | None:
        if key in self._strings or key in self._sets:
            raise Refusal("WRONGTYPE Operation against a key holding the wrong kind of value")
        return self.streams.get(key)

    def _group(self, key: bytes, name: bytes) -> tuple[Stream, Group]:
        stream = self._stream(key)
        if stream is None or name not in stream.groups:
            raise Refusal(f"NOGROUP No such key '{key.decode()}' or consumer group '{name.decode()}'")
        return stream, stream.groups[name]

    def _xadd(self, key: bytes, raw_id: bytes, *fields: bytes) -> bytes:
        stream = self._stream(key)
        if stream is None:
            stream = self.streams[key] = Stream()
        one: Id
        if raw_id == b"*":
            now = self._now_ms()
            one = (now, 0) if now > stream.last[0] else (stream.last[0], stream.last[1] + 1)
        else:
            one = parse_id(raw_id)
            if one <= stream.last:
                raise Refusal("ERR The ID specified in XADD is equal or smaller than the target stream top item")
        stream.entries[one] = list(fields)
        stream.last = one
        return format_id(one)

    def _xlen(self, key: bytes) -> int:
        stream = self._stream(key)
        return 0 if stream is None else len(stream.entries)

    def _xdel(self, key: bytes, *ids: bytes) -> int:
        stream = self._stream(key)
        return 0 if stream is None else sum(stream.entries.pop(parse_id(each), None) is not None for each in ids)

    def _xack(self, key: bytes, name: bytes, *ids: bytes) -> int:
        stream = self._stream(key)
        if stream is None or name not in stream.groups:
            return 0
        return sum(stream.groups[name].pending.pop(parse_id(each), None) is not None for each in ids)

    def _xreadgroup(self, *words: bytes) -> list[Any] | None:
        _, name, consumer, *rest = words
        count = 0
        while rest[0].upper() != b"STREAMS":
            if rest[0].upper() == b"COUNT":
                count = int(rest[1])
            rest = rest[2:]  # BLOCK is the connection's affair
        keys = rest[1 : 1 + len(rest) // 2]
        groups = [self._group(key, name) for key in keys]
        found: list[Any] = []
        for key, (stream, group) in zip(keys, groups, strict=True):
            group.consumers.add(consumer)
            news = [one for one in stream.entries if one > group.last]
            news = news[:count] if count else news
            if news:
                for one in news:
                    group.pending[one] = Pending(consumer, self._now_ms())
                group.last = news[-1]
                found.append([key, [[format_id(one), list(stream.entries[one])] for one in news]])
        return found or None

    def _xpending(self, key: bytes, name: bytes, *rest: bytes) -> list[Any]:
        _, group = self._group(key, name)
        if not rest:
            ids = sorted(group.pending)
            owners = sorted({row.consumer for row in group.pending.values()})
            counts = [[one, b"%d" % sum(row.consumer == one for row in group.pending.values())] for one in owners]
            return [len(ids), format_id(ids[0]), format_id(ids[-1]), counts] if ids else [0, None, None, None]
        low, high, count = parse_id(rest[0]), parse_id(rest[1], low=False), int(rest[2])
        now = self._now_ms()
        rows: list[Any] = []
        for one in sorted(group.pending):
            row = group.pending[one]
            if low <= one <= high and (len(rest) == 3 or row.consumer == rest[3]) and len(rows) < count:
                rows.append([format_id(one), row.consumer, max(0, now - row.at_ms), row.deliveries])
        return rows

    def _xclaim(self, key: bytes, name: bytes, consumer: bytes, idle: bytes, *rest: bytes) -> list[Any]:
        stream, group = self._group(key, name)
        words = list(rest)
        ids: list[Id] = []
        while words and words[0].upper() not in {b"IDLE", b"RETRYCOUNT", b"JUSTID", b"FORCE", b"TIME"}:
            ids.append(parse_id(words.pop(0)))
        options = {word.upper(): words[place + 1 : place + 2] for place, word in enumerate(words)}
        just_id = b"JUSTID" in options
        now = self._now_ms()
        given = int(options[b"IDLE"][0]) if b"IDLE" in options else 0
        found: list[Any] = []
        for one in ids:
            row = group.pending.get(one)
            if one not in stream.entries:
                group.pending.pop(one, None)
                continue
            if row is None or now - row.at_ms < int(idle):
                continue
            group.consumers.add(consumer)
            row.consumer, row.at_ms = consumer, now - given
            if b"RETRYCOUNT" in options:
                row.deliveries = int(options[b"RETRYCOUNT"][0])
            elif not just_id:
                row.deliveries += 1
            found.append(format_id(one) if just_id else [format_id(one), list(stream.entries[one])])
        return found

    def _xautoclaim(
        self, key: bytes, name: bytes, consumer: bytes, idle: bytes, start: bytes, *rest: bytes
    ) -> list[Any]:
        stream, group = self._group(key, name)
        options = {word.upper(): rest[place + 1 : place + 2] for place, word in enumerate(rest)}
        count = int(options[b"COUNT"][0]) if b"COUNT" in options else 100
        attempts = count * _AUTOCLAIM_ATTEMPTS
        just_id, now = b"JUSTID" in options, self._now_ms()
        group.consumers.add(consumer)
        found: list[Any] = []
        deleted: list[bytes] = []
        waiting = [one for one in sorted(group.pending) if one >= parse_id(start)]
        place = 0
        while place < len(waiting) and attempts and count:
            one, attempts, place = waiting[place], attempts - 1, place + 1
            row = group.pending[one]
            if one not in stream.entries:
                del group.pending[one]
                deleted.append(format_id(one))
                count -= 1
                continue
            if now - row.at_ms < int(idle):
                continue
            row.consumer, row.at_ms = consumer, now
            if not just_id:
                row.deliveries += 1
            found.append(format_id(one) if just_id else [format_id(one), list(stream.entries[one])])
            count -= 1
        cursor = format_id(waiting[place]) if place < len(waiting) else b"0-0"
        return [cursor, found, deleted]

    def _xgroup(self, action: bytes, key: bytes, name: bytes, *rest: bytes) -> Any:
        if action.upper() == b"CREATE":
            stream = self._stream(key)
            if stream is None:
                if b"MKSTREAM" not in rest:
                    raise Refusal("ERR The XGROUP subcommand requires the key to exist.")
                stream = self.streams[key] = Stream()
            if name in stream.groups:
                raise Refusal("BUSYGROUP Consumer Group name already exists")
            stream.groups[name] = Group(stream.last if rest[0] == b"$" else parse_id(rest[0]))
            return Status(b"OK")
        _, group = self._group(key, name)
        group.consumers.discard(rest[0])
        dropped = [one for one, row in group.pending.items() if row.consumer == rest[0]]
        for one in dropped:
            del group.pending[one]
        return len(dropped)

    def _xinfo(self, _: bytes, key: bytes) -> list[Any]:
        stream = self._stream(key)
        if stream is None:
            raise Refusal("ERR no such key")
        return [
            [
                b"name", name, b"consumers", len(group.consumers), b"pending", len(group.pending),
                b"last-delivered-id", format_id(group.last), b"entries-read", None,
                b"lag", sum(one > group.last for one in stream.entries),
            ]
            for name, group in sorted(stream.groups.items())
        ]  # fmt: skip

    # ------------------------------------------------------------ keys
    def _get(self, key: bytes) -> bytes | None:
        value, until = self._strings.get(key, (None, None))
        if until is not None and until <= self._now_ms():
            del self._strings[key]
            return None
        return value

    def _set(self, key: bytes, value: bytes, *options: bytes) -> Status:
        until = self._now_ms() + int(options[1]) if options and options[0].upper() == b"PX" else None
        self._strings[key] = (value, until)
        return Status(b"OK")

    def _del(self, *keys: bytes) -> int:
        there = [key for key in keys if self._get(key) is not None or key in self.streams or key in self._sets]
        for key in there:
            for kept in (self._strings, self.streams, self._sets):
                kept.pop(key, None)
        return len(there)

    def _pttl(self, key: bytes) -> int:
        if self._get(key) is None:
            return -1 if key in self.streams or key in self._sets else -2
        until = self._strings[key][1]
        return -1 if until is None else until - self._now_ms()

    def _sadd(self, key: bytes, *members: bytes) -> int:
        kept = self._sets.setdefault(key, set())
        before = len(kept)
        kept.update(members)
        return len(kept) - before

    def _srem(self, key: bytes, *members: bytes) -> int:
        kept = self._sets.get(key, set())
        found = kept & set(members)
        kept -= found
        if not kept:
            self._sets.pop(key, None)
        return len(found)

    # ------------------------------------------------------------ scripts
    def _eval(self, script: bytes, number: bytes, *rest: bytes) -> Any:
        keys, arguments = list(rest[: int(number)]), list(rest[int(number) :])

        def call(*words: Any) -> Any:
            reply = self.execute([lua.text_of(word) for word in words])
            if isinstance(reply, Refusal):
                raise reply
            return _to_lua(reply)

        def pcall(*words: Any) -> Any:
            return _to_lua(self.execute([lua.text_of(word) for word in words]))

        def error_reply(text: bytes) -> lua.Table:
            return lua.Table({b"err": text})

        redis = lua.Table(
            {b"call": call, b"pcall": pcall, b"error_reply": error_reply, b"acl_check_cmd": lambda *_: True}
        )
        return _from_lua(lua.run(script, keys, arguments, redis))


def _to_lua(reply: Any) -> Any:
    if reply is None:
        return False
    if isinstance(reply, Refusal):
        return lua.Table({b"err": str(reply).encode()})
    if isinstance(reply, Status):
        return lua.Table({b"ok": bytes(reply)})
    if isinstance(reply, list):
        return lua.Table.of([_to_lua(item) for item in reply])
    return reply


def _from_lua(value: Any) -> Any:
    if isinstance(value, lua.Table):
        if (error := value.get(b"err")) is not None:
            return Refusal(error.decode())
        if (status := value.get(b"ok")) is not None:
            return Status(status)
        return [_from_lua(item) for item in value.items_in_order()]
    if isinstance(value, bool):
        return 1 if value else None
    return int(value) if isinstance(value, float) else value


# ------------------------------------------------------------------ bytes on a connection
def parse_commands(data: bytes) -> tuple[list[list[bytes]], bytes]:
    """Return the whole commands in the bytes that a client has sent, and the rest."""
    found: list[list[bytes]] = []
    position = 0
    while True:
        words, end = _parse_command(data, position)
        if words is None:
            return found, data[position:]
        found.append(words)
        position = end


def _parse_command(data: bytes, position: int) -> tuple[list[bytes] | None, int]:
    line = data.find(b"\r\n", position)
    if line < 0:
        return None, position
    count = int(data[position + 1 : line])
    position = line + 2
    words: list[bytes] = []
    for _ in range(count):
        line = data.find(b"\r\n", position)
        if line < 0:
            return None, position
        size = int(data[position + 1 : line])
        if len(data) < line + 2 + size + 2:
            return None, position
        words.append(data[line + 2 : line + 2 + size])
        position = line + 2 + size + 2
    return words, position


def encode(reply: Any) -> bytes:
    """Return a reply as a server writes it in RESP2."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, Refusal):
        return b"-%s\r\n" % str(reply).encode()
    if isinstance(reply, Status):
        return b"+%s\r\n" % bytes(reply)
    if isinstance(reply, bytes):
        return b"$%d\r\n%s\r\n" % (len(reply), reply)
    if isinstance(reply, list):
        return b"*%d\r\n" % len(reply) + b"".join(map(encode, reply))
    return b":%d\r\n" % reply
