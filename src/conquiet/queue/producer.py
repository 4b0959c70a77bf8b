"""Adding entries to a stream. No consumer group is needed, and none is created.

A group that is created only to produce is read by no consumer. It needs every entry, so nothing is ever trimmed.
"""

import functools
import hashlib
from collections.abc import Iterable
from typing import Any, Final

from conquiet.core.closing import ClosedAfterUse
from conquiet.core.json_codec import CodecError, canonical, encode_payload
from conquiet.core.redaction import printable
from conquiet.core.validation import require_positive, require_seconds, require_text
from conquiet.errors import ConfigurationError, PayloadError, QueueError
from conquiet.queue.commands import AddCommand
from conquiet.queue.metrics import count_queue
from conquiet.redis_transport.client import SOCKET_TIMEOUT_S, AnyRedis
from conquiet.redis_transport.cluster_connection import open_connection
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.connection import RedisConnection
from conquiet.redis_transport.hash_tags import slot_prefix
from conquiet.redis_transport.replica_wait import ReplicaWait, replica_wait_of, write_replicated
from conquiet.redis_transport.replies import text
from conquiet.redis_transport.stream_scripts import ENQUEUE_MANY

MAX_BATCH = 10_000
"""Most payloads of one ``enqueue_many``: one script, during which the server does nothing else."""

LONGEST_WINDOW_S = 10 * 366 * 86_400.0
"""Longest ``idempotency_window_s``: ten years. Redis refuses expiry times far beyond."""

ENQUEUE_ONCE: Final = """
local first = redis.call('GET', KEYS[2])
if first and first ~= '-' then return first end
redis.call('SET', KEYS[2], '-', 'PX', ARGV[3])
local added = redis.pcall('XADD', KEYS[1], '*', 'data', ARGV[1])
if type(added) == 'table' and added.err then
  redis.call('SET', KEYS[2], '-', 'PX', 1)
  return added
end
redis.call('SET', KEYS[2], added .. ' ' .. ARGV[2], 'PX', ARGV[3])
return added .. ' ' .. ARGV[2]
"""
"""Add an entry unless the idempotency key has added one. KEYS: stream, mark; ARGV: data, digest, milliseconds.

Returns "id digest" of the key's entry, new or not. The mark is set before the entry is added, as "-": if the server
refused the mark afterwards, the entry would exist without it, and the next call would add a second one. Setting the
mark again for the same time is not refused.
"""


class EntryWriter(ClosedAfterUse):
    """Adds messages to one stream: what ``StreamProducer`` and ``RedisStreamsQueue`` have in common.

    Args:
        stream: Key of the stream.
        connection: Closed by ``close()``.
        max_payload_bytes: Largest payload, encoded.
        group: Group of the reader, for errors; empty if there is none.
    """

    def __init__(self, stream: str, connection: RedisConnection, *, max_payload_bytes: int, group: str = "") -> None:
        self._stream = stream
        self._group = group
        self._connection = connection
        self._call = functools.partial(connection.call, stream=stream, group=group)
        self._write = functools.partial(write_replicated, connection, stream=stream, group=group)
        self._max_bytes = max_payload_bytes
        self._add = AddCommand(stream)

    def enqueue(
        self,
        payload: dict[str, Any],
        *,
        idempotency_key: str | None = None,
        idempotency_window_s: float = 86_400.0,
        replicas: int = 0,
        replicas_timeout_s: float = 1.0,
    ) -> str:
        """Add ``payload`` to the stream and return the id of its entry. SPEC(001 §5.3).

        If the reply is lost, ``QueueError.in_doubt`` is true and the entry may be there. A repeated
        call would then add it twice, unless both calls have the same ``idempotency_key``: a key adds one entry within
        the window, and every call returns that entry's id. Check and XADD are one step on the server.

        With ``replicas`` the call returns when this many replicas of the server have the entry (WAIT): a fail-over to
        one of them does not lose it.

        Raises:
            NotReplicatedError: They have not confirmed it within ``replicas_timeout_s``. The entry is written.
            PayloadError: The payload is not a JSON object, or the key was used for another payload.
            ConfigurationError: The window is longer than ten years.
        """
        wait = replica_wait_of(replicas, replicas_timeout_s)
        data = self._encode(payload)
        if idempotency_key is not None:
            message_id = self._enqueue_once(payload, data, idempotency_key, idempotency_window_s, wait)
        elif wait is None:
            message_id = text(self._call("XADD", self._add.pack(data)))
        else:
            message_id = text(self._write("XADD", self._add.pack(data), wait))
        count_queue(self._stream, "enqueued")
        return message_id

    def enqueue_many(
        self, payloads: Iterable[dict[str, Any]], *, replicas: int = 0, replicas_timeout_s: float = 1.0
    ) -> list[str]:
        """Add all payloads in their order, or none of them, and return the ids.

        One step on the server (EVAL), one round trip, at most 10,000 payloads. If one payload is refused, none is sent.
        ``replicas``: see ``enqueue``.
        """
        wait = replica_wait_of(replicas, replicas_timeout_s)
        encoded = [self._encode(payload) for payload in payloads]
        if not encoded:
            return []
        if len(encoded) > MAX_BATCH:
            raise self._refusal("EVAL", f"takes at most {MAX_BATCH} payloads in one call, got {len(encoded)}")
        packed = pack("EVAL", ENQUEUE_MANY, 1, self._stream, *encoded)
        ids = [text(added) for added in self._write("EVAL", packed, wait)]
        count_queue(self._stream, "enqueued", len(ids))
        return ids

    def close(self) -> None:
        """Close the connections. The caller's client stays open."""
        self._connection.close()

    def _encode(self, payload: dict[str, Any]) -> bytes:
        try:
            return encode_payload(payload, max_bytes=self._max_bytes)
        except CodecError as error:
            refused = error
        raise self._payload_error(f"the payload was refused: {refused.explanation}", refused.reason, refused.path)

    def _enqueue_once(
        self, payload: dict[str, Any], data: bytes, key: str, window_s: float, wait: ReplicaWait | None
    ) -> str:
        require_text("idempotency_key", key)
        if require_seconds("idempotency_window_s", window_s) > LONGEST_WINDOW_S:
            raise ConfigurationError(f"idempotency_window_s must be at most ten years, got {window_s}")
        window_ms = max(1, round(window_s * 1000))
        digest = hashlib.sha256(canonical(payload)).hexdigest()[:32]
        mark = mark_key(self._stream, key)
        packed = pack("EVAL", ENQUEUE_ONCE, 2, self._stream, mark, data, digest, window_ms)
        message_id, _, first = text(self._write("EVAL", packed, wait)).partition(" ")
        if first != digest:
            raise self._payload_error(
                f"the idempotency key was used before, for another payload (entry {message_id}); nothing was added",
                "idempotency key reused",
            )
        return message_id

    def _refusal(self, command: str, problem: str) -> QueueError:
        return QueueError(
            f"{command} {problem}. Nothing was sent", stream=self._stream, group=self._group, command=command
        )

    def _payload_error(self, problem: str, reason: str, path: str = "") -> PayloadError:
        return PayloadError(
            f"XADD on stream {printable(self._stream)!r}: {problem}",
            stream=self._stream,
            group=self._group,
            command="XADD",
            reason=reason,
            path=path,
        )


class StreamProducer(EntryWriter):
    """Adds messages to one stream. Needs no consumer group and creates none.

    Every command is sent once, on connections cloned from ``redis``. May be used from several threads.

    Args:
        redis: ``redis.Redis``, ``redis.asyncio.Redis`` or a ``RedisCluster``, with any settings.
        stream_key: Key of the stream. It is created by the first entry.
        max_payload_bytes: Largest payload, encoded; as ``QueueConfig.max_payload_bytes`` of the consumers.
        command_timeout_s: How long a reply may take.

    Raises:
        ConfigurationError: The client cannot be cloned, or an argument cannot work. Nothing was sent.
    """

    def __init__(
        self,
        redis: AnyRedis,
        stream_key: str,
        *,
        max_payload_bytes: int = 1_048_576,
        command_timeout_s: float = SOCKET_TIMEOUT_S,
    ) -> None:
        self.stream_key = require_text("stream_key", stream_key)
        require_seconds("command_timeout_s", command_timeout_s)
        require_positive("max_payload_bytes", max_payload_bytes)
        connection = open_connection(redis, socket_timeout_s=command_timeout_s)
        super().__init__(stream_key, connection, max_payload_bytes=max_payload_bytes)


def mark_key(stream: str, idempotency_key: str) -> str:
    """Return the Redis key that remembers an idempotency key, in the slot of its stream.

    The idempotency key itself is not stored: it may be an e-mail address.
    """
    digest = hashlib.sha256(idempotency_key.encode()).hexdigest()
    return f"{slot_prefix(stream)}:once:{digest}"
