"""Adding entries to a stream. No consumer group is needed, and none is created.

A group that is created only to produce is read by no consumer. It needs every entry, so nothing is ever trimmed.
"""

import functools
import hashlib
from collections.abc import Iterable
from typing import Any

from conquiet.core.closing import ClosedAfterUse
from conquiet.core.json_codec import CodecError, canonical, encode_payload
from conquiet.core.redaction import printable
from conquiet.core.validation import require_positive, require_seconds, require_text
from conquiet.errors import ConfigurationError, PayloadError, QueueError
from conquiet.queue import scripts
from conquiet.queue.commands import AddCommand
from conquiet.queue.metrics import count_queue
from conquiet.redis_transport.client import SOCKET_TIMEOUT_S, AnyRedis
from conquiet.redis_transport.cluster_connection import open_connection
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.connection import RedisConnection
from conquiet.redis_transport.replica_wait import ReplicaWait, replica_wait_of, write_replicated
from conquiet.redis_transport.replies import text
from conquiet.redis_transport.stream_scripts import ENQUEUE_MANY

MAX_BATCH = 10_000
"""Most payloads of one ``enqueue_many``: one script, during which the server does nothing else."""

LONGEST_WINDOW_S = 10 * 366 * 86_400.0
"""Longest ``idempotency_window_s``: ten years. Redis refuses expiry times far beyond."""


class EntryWriter:
    """Encodes payloads and adds them to one stream through a connection of its owner.

    Args:
        stream: Key of the stream.
        connection: The owner's, which closes it.
        max_payload_bytes: Largest payload, encoded.
        group: Group of the owner, for errors; empty if it has none.
    """

    def __init__(self, stream: str, connection: RedisConnection, *, max_payload_bytes: int, group: str = "") -> None:
        self._stream = stream
        self._call = functools.partial(connection.call, stream=stream, group=group)
        self._write = functools.partial(write_replicated, connection, stream=stream, group=group)
        self._max_bytes = max_payload_bytes
        self._group = group
        self._add = AddCommand(stream)

    def enqueue(
        self, payload: dict[str, Any], key: str | None, window_s: float, wait: ReplicaWait | None = None
    ) -> str:
        """Add one payload; see ``StreamProducer.enqueue``."""
        data = self._encode(payload)
        if key is not None:
            message_id = self._enqueue_once(payload, data, key, window_s, wait)
        elif wait is None:
            message_id = text(self._call("XADD", self._add.pack(data)))
        else:
            message_id = text(self._write("XADD", self._add.pack(data), wait))
        count_queue(self._stream, "enqueued")
        return message_id

    def enqueue_many(self, payloads: Iterable[dict[str, Any]], wait: ReplicaWait | None = None) -> list[str]:
        """Add payloads, all or none; see ``StreamProducer.enqueue_many``."""
        encoded = [self._encode(payload) for payload in payloads]
        if not encoded:
            return []
        if len(encoded) > MAX_BATCH:
            raise QueueError(
                f"EVAL takes at most {MAX_BATCH} payloads in one call, got {len(encoded)}. Nothing was sent",
                stream=self._stream,
                group=self._group,
                command="EVAL",
            )
        packed = pack("EVAL", ENQUEUE_MANY, 1, self._stream, *encoded)
        ids = [text(added) for added in self._write("EVAL", packed, wait)]
        count_queue(self._stream, "enqueued", len(ids))
        return ids

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
        mark = scripts.mark_key(self._stream, key)
        packed = pack("EVAL", scripts.ENQUEUE_ONCE, 2, self._stream, mark, data, digest, window_ms)
        message_id, _, first = text(self._write("EVAL", packed, wait)).partition(" ")
        if first != digest:
            raise self._payload_error(
                f"the idempotency key was used before, for another payload (entry {message_id}); nothing was added",
                "idempotency key reused",
            )
        return message_id

    def _payload_error(self, problem: str, reason: str, path: str = "") -> PayloadError:
        return PayloadError(
            f"XADD on stream {printable(self._stream)!r}: {problem}",
            stream=self._stream,
            group=self._group,
            command="XADD",
            reason=reason,
            path=path,
        )


class StreamProducer(ClosedAfterUse):
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
        self._connection = open_connection(redis, socket_timeout_s=command_timeout_s)
        self._writer = EntryWriter(stream_key, self._connection, max_payload_bytes=max_payload_bytes)

    def enqueue(
        self,
        payload: dict[str, Any],
        *,
        idempotency_key: str | None = None,
        idempotency_window_s: float = 86_400.0,
        replicas: int = 0,
        replicas_timeout_s: float = 1.0,
    ) -> str:
        """Add ``payload`` to the stream and return the id of its entry; see ``RedisStreamsQueue.enqueue``."""
        wait = replica_wait_of(replicas, replicas_timeout_s)
        return self._writer.enqueue(payload, idempotency_key, idempotency_window_s, wait)

    def enqueue_many(
        self, payloads: Iterable[dict[str, Any]], *, replicas: int = 0, replicas_timeout_s: float = 1.0
    ) -> list[str]:
        """Add all payloads in their order, or none of them; see ``RedisStreamsQueue.enqueue_many``."""
        return self._writer.enqueue_many(payloads, replica_wait_of(replicas, replicas_timeout_s))

    def close(self) -> None:
        """Close the connections. The caller's client stays open."""
        self._connection.close()
