"""One stream, one consumer group: each method is one plain step on the server. SPEC(001 §5).

    enqueue ──▶ in the stream ──read──▶ pending for this consumer ──ack──▶ done
                                           │            ▲
                            process died,  │            │ recover_own: mine, after a restart
                            handler failed ▼            │ claim_stale: anyone's, idle for too long
                                        still pending ──┘

Not here: loops, retries, buffers, signals, trimming, clean-up of consumers, dead letters. What a
method needs beyond its main command (XPENDING before XCLAIM) is named in its docstring.
"""

import hashlib
import logging
import re
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from redis.exceptions import ResponseError

from conquiet.config import QueueConfig
from conquiet.errors import ConfigurationError, PayloadError, QueueError
from conquiet.kernel.redaction import printable
from conquiet.kernel.validation import require_seconds, require_text
from conquiet.queue import scripts
from conquiet.queue.backlog import read_backlog
from conquiet.queue.client import SOCKET_TIMEOUT_S, AnyRedis, clone_sync
from conquiet.queue.codec import CodecError, canonical, encode_payload
from conquiet.queue.commands import StreamCommands, pack
from conquiet.queue.delivery import Deliveries
from conquiet.queue.faults import is_group_there_already
from conquiet.queue.metrics import (
    observe_queue_ack,
    observe_queue_ack_noop,
    observe_queue_claim,
    observe_queue_read,
    prepare_queue_metrics,
)
from conquiet.queue.models import Backlog, MessageBatch, QueueMessage
from conquiet.queue.recovery import StaleFinder
from conquiet.queue.replies import Entry, entries, pending_rows, read_entries, text
from conquiet.queue.sender import Sender
from conquiet.queue.wire import Wire

logger = logging.getLogger(__name__)

LONGEST_SLICE_MS = 1_000
"""Longest BLOCK that the connections are prepared for; a longer read gets a connection of its own."""

MAX_BATCH = 10_000
"""Most payloads of one ``enqueue_many``: they are one script, and the server does nothing else meanwhile."""

LONGEST_WINDOW_S = 10 * 366 * 86_400.0
"""Longest ``idempotency_window_s``: ten years. Redis has no times far beyond, and refuses to set them."""

_ID = re.compile(r"\d{1,20}-\d{1,20}")


def require_config(config: object) -> None:
    """Raise ``ConfigurationError`` for anything but a ``QueueConfig``, which has checked itself."""
    if not isinstance(config, QueueConfig):
        raise ConfigurationError("config must be a QueueConfig(stream, group, name of this process)")


class RedisStreamsQueue:
    """A stream and a consumer group, seen by one of the group's consumers.

    ``redis`` is only looked at: every command goes through connections of our own, cloned from it,
    and is sent once. ``enqueue`` and ``enqueue_many`` may be called from several threads.

    Args:
        redis: ``redis.Redis`` (or ``redis.asyncio.Redis``), however it was made: by URL, Unix socket, TLS, Sentinel.
        config: Stream, group, consumer name and limits.
        command_timeout_s: How long a reply may take, waiting on purpose not counted. After that the
            connection is given up and the call raises.

    Raises:
        ConfigurationError: The client cannot be cloned.
        QueueError: The consumer group could not be created.
    """

    def __init__(self, redis: AnyRedis, config: QueueConfig, *, command_timeout_s: float = SOCKET_TIMEOUT_S) -> None:
        require_seconds("command_timeout_s", command_timeout_s)
        require_config(config)
        self.redis = redis
        self.config = config
        self._commands = StreamCommands(config.stream_key, config.consumer_group, config.consumer_name)
        self._deliveries = Deliveries(config)
        prepare_queue_metrics(config.stream_key)
        longest_wait_s = LONGEST_SLICE_MS / 1000
        clone = clone_sync(redis, socket_timeout_s=command_timeout_s + longest_wait_s)
        self._send = Sender(Wire(clone, longest_wait_s=longest_wait_s), config.stream_key, config.consumer_group)
        self._finder = StaleFinder(self._commands, self._send.call)
        try:
            self._ensure_group_exists()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------ life
    def close(self) -> None:
        """Close the connections we opened. The caller's client is left alone."""
        self._send.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ writing
    def enqueue(
        self,
        payload: dict[str, Any],
        *,
        idempotency_key: str | None = None,
        idempotency_window_s: float = 86_400.0,
    ) -> str:
        """Add ``payload`` to the stream and return the id of its entry. SPEC(001 §5.3).

        If the reply is lost, ``QueueError.in_doubt`` is true and the entry may be there. A repeated
        call would then add it twice, unless both calls give the same ``idempotency_key``: the key adds
        one entry within the window, and every call gets that entry's id. Looking and adding are one
        step on the server.

        Raises:
            PayloadError: The payload is not a JSON object, or the key was used for another payload.
            ConfigurationError: The window is longer than ten years.
        """
        data = self._encode(payload)
        if idempotency_key is None:
            return text(self._send.call("XADD", self._commands.add(data)))
        return self._enqueue_once(payload, data, idempotency_key, idempotency_window_s)

    def enqueue_many(self, payloads: Iterable[dict[str, Any]]) -> list[str]:
        """Add all payloads in their order, or none of them, and return the ids.

        One step on the server (EVAL), one round trip, at most 10,000 payloads. One payload that is
        refused keeps all of them from being sent.
        """
        encoded = [self._encode(payload) for payload in payloads]
        if not encoded:
            return []
        if len(encoded) > MAX_BATCH:
            raise self._refusal("EVAL", f"takes at most {MAX_BATCH} payloads in one call, got {len(encoded)}")
        packed = pack("EVAL", scripts.ENQUEUE_MANY, 1, self.config.stream_key, *encoded)
        return [text(added) for added in self._send.call("EVAL", packed)]

    # ------------------------------------------------------------------ reading
    def read(self, block_ms: int, count: int = 1) -> MessageBatch:
        """Wait up to ``block_ms`` for entries never delivered to the group. Exactly one XREADGROUP. SPEC(001 §5.4).

        What is returned is pending for this consumer until it is acknowledged. Entries that break
        the format are in ``.malformed`` of the batch.

        Raises:
            MalformedMessageError: There were entries, and every one of them was malformed.
            GroupMissingError: The stream or the group is gone.
            QueueError: Also for an argument that is not a positive int: Redis takes 0 as "for ever".
        """
        self._require_positive("XREADGROUP", "block_ms", block_ms)
        self._require_positive("XREADGROUP", "count", count)
        started = time.perf_counter()
        reply = self._send.call("XREADGROUP", self._commands.read_new(block_ms, count), wait_s=block_ms / 1000)
        if not reply:
            return MessageBatch()
        latency_s = time.perf_counter() - started
        batch = self._deliveries.batch(read_entries(reply), command="XREADGROUP")
        observe_queue_read(self.config.stream_key, len(batch), latency_s)
        return batch

    def recover_own(self, count: int = 100, *, after: str = "0-0") -> MessageBatch:
        """Return entries that are pending for this consumer already, e.g. from before a crash.

        For the start of a process, before the first read, under a consumer name that no other live
        process has. Reading them again counts as a delivery. One XREADGROUP, then one XPENDING for
        the delivery counts; goes on behind ``after``: pass ``batch.last_id`` until it is None.
        Entries deleted from the stream meanwhile are acknowledged and named in ``.deleted``.
        """
        self._require_positive("XREADGROUP", "count", count)
        self._require_id("XREADGROUP", after)
        found = read_entries(self._send.call("XREADGROUP", self._commands.read_own(after, count)))
        if not found:
            return MessageBatch()
        rows = pending_rows(
            self._send.call("XPENDING", self._commands.pending_of_own(found[0].id, found[-1].id, len(found)))
        )
        gone = [entry.id for entry in found if entry.fields is None]
        if gone:
            self._send.call("XACK", self._commands.ack_all(gone))
        counts = {row.id: row.deliveries for row in rows}
        return self._deliveries.batch(found, command="XREADGROUP", counts=counts)

    # ------------------------------------------------------------------ settling
    def ack(self, msg: QueueMessage) -> None:
        """Acknowledge: the entry is not pending any more. SPEC(001 §5.5).

        Acknowledging what is not pending (done before, or claimed and done by another) is allowed;
        it is logged and counted.
        """
        self._require_ours("XACK", msg)
        self._ack(msg.id)

    def ack_id(self, message_id: str) -> None:
        """Acknowledge by id alone, e.g. a malformed entry that was put aside: ``ack_id(error.message_id)``."""
        self._require_id("XACK", message_id)
        self._ack(message_id)

    def extend(self, msg: QueueMessage) -> bool:
        """Start the idle clock of ``msg`` anew, so that nobody claims it for another while.

        Returns:
            False if it is not ours any more: acknowledged, or claimed by another consumer, who is
            likely working on it. It is not taken back.
        """
        self._require_ours("EVAL", msg)
        config = self.config
        kept = self._send.call(
            "EVAL",
            pack(
                "EVAL", scripts.EXTEND_LEASE, 1, config.stream_key, config.consumer_group, config.consumer_name, msg.id
            ),
        )
        return bool(kept)

    def claim_stale(self, min_idle_ms: int, count: int = 10) -> MessageBatch:
        """Take over at most ``count`` entries that nobody has touched for ``min_idle_ms``. SPEC(001 §5.6).

        XINFO CONSUMERS and XPENDING find them wherever they stand, XCLAIM takes them; the server
        decides about the idle time. Best effort: one call need not find all of them. Entries deleted
        from the stream are dropped and named in ``.deleted``, malformed ones are in ``.malformed``.

        Raises:
            MalformedMessageError: Entries were claimed, and every one of them was malformed.
        """
        self._require_positive("XCLAIM", "min_idle_ms", min_idle_ms)
        self._require_positive("XCLAIM", "count", count)
        stale = self._finder.find(min_idle_ms=min_idle_ms, count=count)
        if not stale:
            return MessageBatch()
        reply = self._send.call("XCLAIM", self._commands.claim(min_idle_ms, [row.id for row in stale]))
        claimed = entries(reply)
        gone = self._deleted_among({row.id for row in stale} - {entry.id for entry in claimed})
        if gone and None in reply:
            # Redis 6.2 claims a deleted entry and answers nil for it; later ones drop it themselves.
            self._send.call("XACK", self._commands.ack_all(gone))
        counts = {row.id: row.deliveries + 1 for row in stale}
        found = [*claimed, *(Entry(message_id, None) for message_id in gone)]
        batch = self._deliveries.batch(found, command="XCLAIM", counts=counts)
        if batch:
            observe_queue_claim(self.config.stream_key, len(batch))
        return batch

    # ------------------------------------------------------------------ looking
    def backlog(self) -> Backlog:
        """Say how far the group is behind. Asks only when called, changes nothing. SPEC(000 §12.2)."""
        return read_backlog(self.config, self._send.call)

    # ------------------------------------------------------------------ inside
    def _ensure_group_exists(self) -> None:
        try:
            self._send.call("XGROUP CREATE", self._commands.create_group())
        except QueueError as error:
            if not (isinstance(error.__cause__, ResponseError) and is_group_there_already(error.__cause__)):
                raise

    def _encode(self, payload: dict[str, Any]) -> bytes:
        try:
            return encode_payload(payload, max_bytes=self.config.max_payload_bytes)
        except CodecError as error:
            reason = error.reason
        raise self._payload_error(f"the payload was refused: {reason}", reason)

    def _enqueue_once(self, payload: dict[str, Any], data: bytes, key: str, window_s: float) -> str:
        require_text("idempotency_key", key)
        if require_seconds("idempotency_window_s", window_s) > LONGEST_WINDOW_S:
            raise ConfigurationError(f"idempotency_window_s must be at most ten years, got {window_s}")
        window_ms = max(1, round(window_s * 1000))
        digest = hashlib.sha256(canonical(payload)).hexdigest()[:32]
        stream = self.config.stream_key
        packed = pack("EVAL", scripts.ENQUEUE_ONCE, 2, stream, scripts.mark_key(stream, key), data, digest, window_ms)
        message_id, _, first = text(self._send.call("EVAL", packed)).partition(" ")
        if first != digest:
            raise self._payload_error(
                f"the idempotency key was used before, for another payload (entry {message_id}); nothing was added",
                "idempotency key reused",
            )
        return message_id

    def _ack(self, message_id: str) -> None:
        if self._send.call("XACK", self._commands.ack(message_id)):
            observe_queue_ack(self.config.stream_key)
        else:
            observe_queue_ack_noop(self.config.stream_key)
            logger.info(
                "acknowledged a message that was not pending",
                extra={"stream": self.config.stream_key, "group": self.config.consumer_group, "message_id": message_id},
            )

    def _deleted_among(self, ids: set[str]) -> list[str]:
        """Return which of the ids that XCLAIM did not give us are gone from the stream; the others were taken first."""
        if not ids:
            return []
        asked = sorted(ids)
        packed = b"".join(map(self._commands.exists, asked))
        found = (
            [self._send.call("XRANGE", packed)]
            if len(asked) == 1
            else self._send.pipeline("XRANGE", packed, len(asked))
        )
        return [message_id for message_id, reply in zip(asked, found, strict=True) if reply == []]

    def _require_positive(self, command: str, name: str, value: object) -> None:
        if type(value) is not int or value <= 0:
            shown = value if type(value) in {int, float} else f"a {type(value).__name__}"
            raise self._refusal(command, f"needs {name} as a positive int, got {shown}")

    def _require_id(self, command: str, value: object) -> None:
        if not isinstance(value, str) or _ID.fullmatch(value) is None:
            raise self._refusal(command, "needs an entry id such as 1700000000000-0")

    def _require_ours(self, command: str, msg: QueueMessage) -> None:
        # Ids of two streams can be equal: acknowledging on the wrong one would settle somebody else's entry.
        if msg.stream != self.config.stream_key or msg.group != self.config.consumer_group:
            raise self._refusal(
                command,
                f"was given a message of stream {printable(msg.stream)!r}, group {printable(msg.group)!r}, "
                "which is not this queue's",
            )

    def _refusal(self, command: str, problem: str) -> QueueError:
        return QueueError(
            f"{command} {problem}. Nothing was sent",
            stream=self.config.stream_key,
            group=self.config.consumer_group,
            command=command,
        )

    def _payload_error(self, problem: str, reason: str) -> PayloadError:
        return PayloadError(
            f"XADD on stream {printable(self.config.stream_key)!r}: {problem}",
            stream=self.config.stream_key,
            group=self.config.consumer_group,
            command="XADD",
            reason=reason,
        )
