"""One stream and one consumer group: each method is one step on the server. SPEC(001 §5).

    enqueue ──▶ in the stream ──read──▶ pending for this consumer ──ack──▶ done
                                           │            ▲
                            process died,  │            │ recover_own: own entries, after a restart
                            handler failed ▼            │ claim_stale: entries of any consumer, idle for too long
                                        still pending ──┘

Not here: loops, retries, buffers, signals, trimming, removal of consumers, dead letters. A docstring names the commands
that a method sends in addition to its main one (XPENDING before XCLAIM).

See docs/decisions/0010 and 0011.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from conquiet.config import QueueConfig
from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.core.validation import require_instance, require_seconds
from conquiet.errors import GroupMissingError, QueueError
from conquiet.queue.commands import StreamCommands
from conquiet.queue.decoding import MessageDecoder
from conquiet.queue.metrics import (
    count_queue,
    observe_queue_ack,
    observe_queue_claim,
    observe_queue_read,
    prepare_queue_metrics,
)
from conquiet.queue.models import Backlog, MessageBatch, QueueMessage
from conquiet.queue.pending_scan import StaleScan
from conquiet.queue.producer import EntryWriter
from conquiet.redis_transport.client import SOCKET_TIMEOUT_S, AnyRedis
from conquiet.redis_transport.cluster_connection import open_connection
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.errors import ResponseError, is_group_there_already
from conquiet.redis_transport.ids import is_entry_id, milliseconds_of
from conquiet.redis_transport.replies import (
    StreamEntry,
    entries,
    group_lag,
    group_row,
    pending_of,
    pending_rows,
    read_entries,
    server_ms,
    text,
)
from conquiet.redis_transport.retention_scripts import TRIM
from conquiet.redis_transport.stream_scripts import EXTEND_LEASE

logger = FactLogger(__name__)

LONGEST_SLICE_MS = 1_000
"""Longest BLOCK that the connections' socket timeout covers; a longer read uses a connection with a longer one."""


Call = Callable[[str, bytes], Any]


class RedisStreamsQueue(EntryWriter):
    """A stream and a consumer group, as one of the group's consumers.

    Every command is sent once, on connections cloned from ``redis``; the client itself is not used.
    ``enqueue`` and ``enqueue_many`` may be called from several threads.

    Args:
        redis: ``redis.Redis`` (or ``redis.asyncio.Redis``), with any settings (URL, Unix socket, TLS, Sentinel); or a
            ``RedisCluster``.
        config: Stream, group, consumer name and limits.
        command_timeout_s: How long a reply may take, BLOCK time not counted. After that the connection is closed
            and the call raises.

    Raises:
        ConfigurationError: The client cannot be cloned.
        QueueError: The consumer group could not be created.
    """

    def __init__(self, redis: AnyRedis, config: QueueConfig, *, command_timeout_s: float = SOCKET_TIMEOUT_S) -> None:
        require_seconds("command_timeout_s", command_timeout_s)
        self.redis = redis
        self.config = require_instance("config", config, QueueConfig)
        self._commands = StreamCommands(config.stream_key, config.consumer_group, config.consumer_name)
        self._decoder = MessageDecoder(config)
        prepare_queue_metrics(config.stream_key)
        longest_wait_s = LONGEST_SLICE_MS / 1000
        connection = open_connection(
            redis, socket_timeout_s=command_timeout_s + longest_wait_s, longest_wait_s=longest_wait_s
        )
        stream, group = config.stream_key, config.consumer_group
        super().__init__(stream, connection, max_payload_bytes=config.max_payload_bytes, group=group)
        self._pipeline = functools.partial(connection.pipeline, stream=stream, group=group)
        self._stale = StaleScan(self._commands, self._call)
        try:
            self._ensure_group_exists()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------ life
    def abort(self) -> None:
        """Make calls that wait for a reply fail immediately, and later reads. Takes no lock."""
        self._connection.abort()

    # ------------------------------------------------------------------ reading
    def read(self, block_ms: int, count: int = 1) -> MessageBatch:
        """Wait up to ``block_ms`` for entries never delivered to the group. Exactly one XREADGROUP. SPEC(001 §5.4).

        The entries are pending for this consumer until they are acknowledged. Entries that break the format are in
        ``.malformed`` of the batch.

        Raises:
            MalformedMessageError: There were entries, and every one of them was malformed.
            GroupMissingError: The stream or the group is gone.
            QueueError: Also for an argument that is not a positive int: Redis takes 0 as "no limit".
        """
        self._require_positive("XREADGROUP", "block_ms", block_ms)
        self._require_positive("XREADGROUP", "count", count)
        started = time.perf_counter()
        reply = self._call("XREADGROUP", self._commands.read_new(block_ms, count), wait_s=block_ms / 1000)
        if not reply:
            return MessageBatch()
        latency_s = time.perf_counter() - started
        batch = self._decoder.batch(read_entries(reply), command="XREADGROUP")
        observe_queue_read(self._stream, len(batch), latency_s)
        return batch

    def recover_own(self, count: int = 100, *, after: str = "0-0") -> MessageBatch:
        """Return entries that are pending for this consumer already, e.g. from before a crash.

        For the start of a process, before the first read, under a consumer name that no other live
        process has. Reading them again counts as a delivery. One XREADGROUP, then one XPENDING for
        the delivery counts. Reads entries after the id ``after``: pass ``batch.last_id`` until it is None.
        Entries deleted from the stream are acknowledged and named in ``.deleted``.
        """
        self._require_positive("XREADGROUP", "count", count)
        self._require_id("XREADGROUP", after)
        found = read_entries(self._call("XREADGROUP", self._commands.read_own(after, count)))
        if not found:
            return MessageBatch()
        own = self._commands.pending_of_own(found[0].id, found[-1].id, len(found))
        rows = pending_rows(self._call("XPENDING", own))
        gone = [entry.id for entry in found if entry.fields is None]
        if gone:
            self._call("XACK", self._commands.ack_all(gone))
        counts = {row.id: row.deliveries for row in rows}
        batch = self._decoder.batch(found, command="XREADGROUP", counts=counts)
        count_queue(self._stream, "recovered", len(batch))
        return batch

    def count_own(self) -> int:
        """Return how many entries are pending for this consumer. One XPENDING; changes nothing."""
        summary = self._call("XPENDING", self._commands.pending_by_consumer())
        return pending_of(summary, self.config.consumer_name)

    # ------------------------------------------------------------------ settling
    def ack(self, msg: QueueMessage) -> None:
        """Acknowledge a message: its entry is not pending any more. SPEC(001 §5.5).

        Acknowledging an entry that is not pending (done before, or claimed and done by another consumer) is allowed;
        it is logged and counted.
        """
        self._check_same_queue("XACK", msg)
        self._ack(msg.id)

    def ack_id(self, message_id: str) -> None:
        """Acknowledge by id alone, e.g. a malformed entry that was saved elsewhere: ``ack_id(error.message_id)``."""
        self._require_id("XACK", message_id)
        self._ack(message_id)

    def extend(self, msg: QueueMessage) -> bool:
        """Reset the idle time of ``msg``, so that no other consumer claims it as stale.

        Returns:
            False if it is not pending for this consumer any more: acknowledged, or claimed by another consumer. It is
            not claimed back.
        """
        return bool(self.extend_many([msg]))

    def ack_many(self, msgs: Sequence[QueueMessage]) -> None:
        """Acknowledge messages by one XACK; see ``ack``."""
        for msg in msgs:
            self._check_same_queue("XACK", msg)
        if not msgs:
            return
        done = int(self._call("XACK", self._commands.ack_all([msg.id for msg in msgs])))
        count_queue(self._stream, "acked", done)
        if done < len(msgs):
            count_queue(self._stream, "ack_noop", len(msgs) - done)

    def extend_many(self, msgs: Sequence[QueueMessage]) -> set[str]:
        """Reset the idle time of messages by one script; return the ids still pending here. See ``extend``."""
        for msg in msgs:
            self._check_same_queue("EVAL", msg)
        owner = (self._stream, self._group, self.config.consumer_name)
        packed = pack("EVAL", EXTEND_LEASE, 1, *owner, *(msg.id for msg in msgs))
        return {text(kept) for kept in self._call("EVAL", packed)}

    def claim_stale(self, min_idle_ms: int, count: int = 10) -> MessageBatch:
        """Claim at most ``count`` entries that were idle for ``min_idle_ms``. SPEC(001 §5.6).

        XINFO CONSUMERS and XPENDING find them, XCLAIM claims them and checks the idle time on the server. Best effort:
        one call need not find all of them. Entries deleted
        from the stream are dropped and named in ``.deleted``, malformed ones are in ``.malformed``.

        With ``config.claim_skip_own_messages``, entries of this consumer are left out.

        Raises:
            MalformedMessageError: Entries were claimed, and every one of them was malformed.
        """
        self._require_positive("XCLAIM", "min_idle_ms", min_idle_ms)
        self._require_positive("XCLAIM", "count", count)
        own = self.config.consumer_name.encode() if self.config.claim_skip_own_messages else None
        stale = self._stale.find(min_idle_ms=min_idle_ms, count=count, except_for=own)
        if not stale:
            return MessageBatch()
        reply = self._call("XCLAIM", self._commands.claim(min_idle_ms, [row.id for row in stale]))
        claimed = entries(reply)
        gone = self._deleted_among({row.id for row in stale} - {entry.id for entry in claimed})
        if gone and None in reply:
            # Redis 6.2 claims a deleted entry and returns nil for it; later versions drop it.
            self._call("XACK", self._commands.ack_all(gone))
        counts = {row.id: row.deliveries + 1 for row in stale}
        found = [*claimed, *(StreamEntry(message_id, None) for message_id in gone)]
        batch = self._decoder.batch(found, command="XCLAIM", counts=counts)
        if batch:
            observe_queue_claim(self._stream, len(batch))
        return batch

    # ------------------------------------------------------------------ inspection
    def backlog(self) -> Backlog:
        """Return how far the group is behind. Changes nothing. SPEC(000 §12.2)."""
        return read_backlog(self.config, self._call)

    def count_done(self) -> int:
        """Return how many entries every group is done with, which a retention would remove. One EVAL."""
        reply = self._call("EVAL", pack("EVAL", TRIM, 1, self._stream, "report", 0, 0, 0, ""))
        return int(reply[3]) - int(reply[4])

    # ------------------------------------------------------------------ inside
    def _ensure_group_exists(self) -> None:
        try:
            self._call("XGROUP CREATE", self._commands.create_group())
        except QueueError as error:
            if not (isinstance(error.__cause__, ResponseError) and is_group_there_already(error.__cause__)):
                raise

    def _ack(self, message_id: str) -> None:
        if self._call("XACK", self._commands.ack(message_id)):
            observe_queue_ack(self._stream)
        else:
            count_queue(self._stream, "ack_noop")
            about = {"stream": self._stream, "group": self._group, "message_id": message_id}
            logger.info("acknowledged a message that was not pending", **about)

    def _deleted_among(self, ids: set[str]) -> list[str]:
        """Return the deleted ids among the ids that XCLAIM did not return; the others were claimed elsewhere."""
        if not ids:
            return []
        asked = sorted(ids)
        packed = b"".join(map(self._commands.exists, asked))
        found = [self._call("XRANGE", packed)] if len(asked) == 1 else self._pipeline("XRANGE", packed, len(asked))
        return [message_id for message_id, reply in zip(asked, found, strict=True) if reply == []]

    def _require_positive(self, command: str, name: str, value: object) -> None:
        if type(value) is not int or value <= 0:
            shown = value if type(value) in {int, float} else f"a {type(value).__name__}"
            raise self._refusal(command, f"needs {name} as a positive int, got {shown}")

    def _require_id(self, command: str, value: object) -> None:
        if not isinstance(value, str) or not is_entry_id(value):
            raise self._refusal(command, "needs an entry id such as 1700000000000-0")

    def _check_same_queue(self, command: str, msg: QueueMessage) -> None:
        if not isinstance(msg, QueueMessage):
            raise self._refusal(
                command,
                f"needs a message of this queue, got a {type(msg).__name__}. next() returns None if no message came, "
                "and ack_id() acknowledges by id",
            )
        # Ids of two streams can be equal: on the wrong stream this would acknowledge another entry.
        if msg.stream != self._stream or msg.group != self._group:
            raise self._refusal(
                command,
                f"was given a message of stream {printable(msg.stream)!r}, group {printable(msg.group)!r}, "
                "which is not this queue's",
            )


def read_backlog(config: QueueConfig, call: Call) -> Backlog:
    """Return length, lag, pending count and the age of the oldest entry that is not done.

    Sends five commands that each cost the server next to nothing. They are not one transaction: under load the numbers
    belong to slightly different moments.
    """
    stream, group = config.stream_key, config.consumer_group
    length = call("XLEN", pack("XLEN", stream))
    row = group_row(call("XINFO GROUPS", pack("XINFO", "GROUPS", stream)), group)
    if row is None:
        raise GroupMissingError(
            "XINFO GROUPS: the consumer group is gone", stream=stream, group=group, command="XINFO GROUPS"
        )
    pending = call("XPENDING", pack("XPENDING", stream, group))
    after = text(row[b"last-delivered-id"])
    waiting = call("XRANGE", pack("XRANGE", stream, f"({after}", "+", "COUNT", 1))
    candidates = [text(pending[1])] if pending[0] else []
    candidates += [text(waiting[0][0])] if waiting else []
    return Backlog(
        length=length,
        pending=pending[0],
        lag=group_lag(row, length=length, waiting=bool(waiting)),
        oldest_age_s=_age_s(candidates, call) if candidates else None,
    )


def _age_s(ids: list[str], call: Call) -> float:
    """Return the age of the oldest id by the server's clock, from which ids are made. The local clock may be off."""
    now_ms = server_ms(call("TIME", pack("TIME")))
    return max(0.0, (now_ms - min(map(milliseconds_of, ids))) / 1000)
