"""Commands of one consumer on one stream and group, packed once where they never change. Pure.

redis-py packs each command on each call. A consumer sends the same XREADGROUP all day, and its XACK differs only in the
id: packing these once is a good part of being faster than redis-py.
"""

from conquiet.redis_transport.commands import Word, create_group, pack, pack_prefix


class AddCommand:
    """XADD on one stream; needs no group."""

    def __init__(self, stream: str) -> None:
        self._xadd = b"*5\r\n" + pack_prefix("XADD", stream, "*", "data")

    def pack(self, data: bytes) -> bytes:
        """Return XADD of one encoded payload. SPEC(001 §3.1)."""
        return b"%b$%d\r\n%b\r\n" % (self._xadd, len(data), data)


class StreamCommands:
    """The commands of one consumer on one stream and group."""

    def __init__(self, stream: str, group: str, consumer: str) -> None:
        self._stream = stream
        self._group = group
        self._consumer = consumer
        self._xack = b"*4\r\n" + pack_prefix("XACK", stream, group)
        self._reads: dict[tuple[int, int], bytes] = {}

    def create_group(self) -> bytes:
        """Return XGROUP CREATE from the first entry on. SPEC(001 §5.2)."""
        return create_group(self._stream, self._group)

    def read_new(self, block_ms: int, count: int) -> bytes:
        """Return XREADGROUP of entries never delivered to the group. SPEC(001 §5.4)."""
        key = (block_ms, count)
        packed = self._reads.get(key)
        if packed is None:
            if len(self._reads) >= 8:  # noqa: PLR2004 - the last slice of a wait differs each time
                self._reads.clear()
            packed = self._reads[key] = self._read(">", "COUNT", count, "BLOCK", block_ms)
        return packed

    def read_own(self, after: str, count: int) -> bytes:
        """Return XREADGROUP of this consumer's own pending entries after the id ``after``."""
        return self._read(after, "COUNT", count)

    def ack(self, message_id: str) -> bytes:
        """Return XACK of one entry. SPEC(001 §5.5)."""
        data = message_id.encode()
        return b"%b$%d\r\n%b\r\n" % (self._xack, len(data), data)

    def ack_all(self, ids: list[str]) -> bytes:
        """Return XACK of several entries."""
        return pack("XACK", self._stream, self._group, *ids)

    def consumers(self) -> bytes:
        """Return XINFO CONSUMERS: pending entries of each consumer."""
        return pack("XINFO", "CONSUMERS", self._stream, self._group)

    def pending(
        self, *, count: int, start: str = "-", end: str = "+", min_idle_ms: int = 0, consumer: bytes | None = None
    ) -> bytes:
        """Return XPENDING of a range, of one consumer or of all, idle for at least ``min_idle_ms``."""
        idle: tuple[Word, ...] = ("IDLE", min_idle_ms) if min_idle_ms else ()
        owner = () if consumer is None else (consumer,)
        return pack("XPENDING", self._stream, self._group, *idle, start, end, count, *owner)

    def pending_by_consumer(self) -> bytes:
        """Return XPENDING as a summary: the number of entries of each consumer."""
        return pack("XPENDING", self._stream, self._group)

    def pending_of_own(self, start: str, end: str, count: int) -> bytes:
        """Return XPENDING of this consumer's entries, for their delivery counts."""
        return self.pending(count=count, start=start, end=end, consumer=self._consumer.encode())

    def claim(self, min_idle_ms: int, ids: list[str]) -> bytes:
        """Return XCLAIM for this consumer; the server checks the idle time again. SPEC(001 §5.6)."""
        return pack("XCLAIM", self._stream, self._group, self._consumer, min_idle_ms, *ids)

    def exists(self, message_id: str) -> bytes:
        """Return XRANGE of exactly one entry."""
        return pack("XRANGE", self._stream, message_id, message_id, "COUNT", 1)

    def _read(self, start: str, *options: Word) -> bytes:
        return pack("XREADGROUP", "GROUP", self._group, self._consumer, *options, "STREAMS", self._stream, start)
