"""Publish messages of a relay. A target returns a result for each message, or raises if it is unavailable.

The id that identifies a message to its receiver:

    ToStream       the payload's field ``_outbox_id``    Inbox(key=by_outbox_id)
    ToProcessor    the envelope's id                     the processor's own id, through all attempts
    ToRabbit       the property message_id, and ``_outbox_id`` in the body

Publishing needs no consumer group and creates none: a group that no consumer reads holds back trimming.

See docs/decisions/0051.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from conquiet.core.closing import ClosedAfterUse
from conquiet.core.json_codec import CodecError, encode_payload
from conquiet.core.validation import require_positive, require_text
from conquiet.errors import ConfigurationError
from conquiet.metrics.registry import QUEUE_MESSAGES_ENQUEUED_TOTAL
from conquiet.metrics.safety import count
from conquiet.transactional.inbox_keys import EVENT, OUTBOX_ID
from conquiet.transactional.payload import decode
from conquiet.transactional.relay_decisions import OutboxMessage, PublishOutcome

if TYPE_CHECKING:
    from conquiet.processor.partition_routing import PartitionRouter
    from conquiet.processor.partitions import Layout
    from conquiet.redis_transport.client import AnyRedis
    from conquiet.redis_transport.scripts import Arg

Results = list[tuple[PublishOutcome, str]]
"""For each message its outcome, and the reason if it was refused."""

PUBLISHED: Final = (PublishOutcome.PUBLISHED, "")
DEFERRED: Final = (PublishOutcome.DEFERRED, "")
MAX_PAYLOAD_BYTES: Final = 1_048_576


class Target(Protocol):
    """Publishes messages.

    Promises: messages of one key are published in the order given, and none is published after a message of its key
    that was not. ``PUBLISHED`` means that the target has confirmed the message. After an exception the state of all
    messages is unknown; all are published again. ``OSError`` (or one of conquiet's errors) means that the target is
    unavailable: no attempt is counted then. After any other exception they are tried one by one, to find the message at
    fault; if several are tried and none is accepted, the target counts as unavailable after all.

    A call, even with one message, must end within two minutes: a transaction of the outbox stays open during it.
    """

    def publish(self, messages: Sequence[OutboxMessage]) -> Results:
        """Publish the messages and return a result for each."""
        ...


class _RefusedByTarget(Exception):  # noqa: N818 - leaves this module only as a result
    """A message that this target can never accept."""


class ToStream(ClosedAfterUse):
    """Publishes to a Redis stream. A batch is one step on the server: all entries are added, in order, or none.

    Args:
        redis: ``redis.Redis``, ``redis.asyncio.Redis`` or a ``RedisCluster``. Only its settings are used: the target
            opens its own connection at the first message, and ``close()`` closes it.
        stream: Name of the stream.
        max_payload_bytes: Largest entry; as ``QueueConfig.max_payload_bytes`` of the consumers.
        replicas: Number of replicas that must have a message, within a second, before it counts as published. With 0
            a fail-over may lose a message after its outbox row was deleted.
    """

    def __init__(
        self, redis: "AnyRedis", stream: str, *, max_payload_bytes: int = MAX_PAYLOAD_BYTES, replicas: int = 0
    ) -> None:
        from conquiet.redis_transport.client import SOCKET_TIMEOUT_S  # needs the extra "redis"
        from conquiet.redis_transport.cluster_connection import open_connection
        from conquiet.redis_transport.replica_wait import ReplicaWait

        self.stream = self._require_name(stream)
        self._max_bytes = require_positive("max_payload_bytes", max_payload_bytes)
        self._wait = ReplicaWait(replicas)
        self._connection = open_connection(redis, socket_timeout_s=SOCKET_TIMEOUT_S)

    system = "redis"

    def _require_name(self, stream: str) -> str:
        """Return the name of the stream, checked."""
        if not isinstance(stream, str):
            raise ConfigurationError(f"{type(self).__name__} takes a Redis client and the name of a stream")
        return require_text("stream", stream)

    def publish(self, messages: Sequence[OutboxMessage]) -> Results:
        """See ``Target.publish``."""
        results: Results = []
        encoded: list[bytes] = []
        keys: list[bytes | None] = []
        blocked: set[bytes] = set()
        for message in messages:
            if message.key is not None and message.key in blocked:
                results.append(DEFERRED)
                continue
            try:
                encoded.append(encode_payload(self._payload(message), max_bytes=self._max_bytes))
            except (CodecError, _RefusedByTarget) as error:
                results.append((PublishOutcome.REFUSED, str(error)))
                if message.key is not None:
                    blocked.add(message.key)
            else:
                results.append(PUBLISHED)
                keys.append(message.key)
        if encoded:
            self._send(encoded, keys)
            count(QUEUE_MESSAGES_ENQUEUED_TOTAL, self.stream, n=len(encoded))
        return results

    def _send(self, encoded: Sequence[bytes], keys: Sequence[bytes | None]) -> None:  # noqa: ARG002 - for subclasses
        """Write all entries or none. ``keys`` has the order key of each."""
        self._run(self._script(encoded), stream=self.stream)

    def _run(self, words: "Sequence[Arg]", *, stream: str) -> Any:
        """Run a script, and wait for the configured number of replicas."""
        from conquiet.redis_transport.commands import pack
        from conquiet.redis_transport.replica_wait import write_replicated

        return write_replicated(self._connection, "EVAL", pack(*words), self._wait, stream=stream)

    def close(self) -> None:
        """Close the connection. It may be called twice."""
        self._connection.close()

    def _script(self, encoded: Sequence[bytes]) -> "Sequence[Arg]":
        """Return the command that runs a script which adds all entries or none."""
        from conquiet.redis_transport.stream_scripts import ENQUEUE_MANY

        return ("EVAL", ENQUEUE_MANY, 1, self.stream, *encoded)

    def _payload(self, message: OutboxMessage) -> dict[str, Any]:
        payload = {**decode(message.payload), OUTBOX_ID: message.message_id}
        if message.event is not None:
            payload[EVENT] = message.event
        return payload


class ToProcessor(ToStream):
    """Publishes to the handlers of a ``Processor``: each message becomes an envelope, identified by its outbox id.

    The envelope carries the time at which the row was written, and the row's key: messages of one key are published
    in order, and run one at a time and in order.

    Args:
        redis: As for ``ToStream``.
        stream: The processor's stream.
        event: The event of messages that were added without one.
        max_payload_bytes: Largest entry.
        replicas: As for ``ToStream``.
    """

    def __init__(
        self,
        redis: "AnyRedis",
        stream: str,
        event: str | None = None,
        *,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
        replicas: int = 0,
    ) -> None:
        super().__init__(redis, stream, max_payload_bytes=max_payload_bytes, replicas=replicas)
        self._event = None if event is None else require_text("event", event)

    def _payload(self, message: OutboxMessage) -> dict[str, Any]:
        from conquiet.processor.envelope import Envelope, to_payload

        event = message.event or self._event
        if event is None:
            raise _RefusedByTarget("it has no event: give Outbox.add or ToProcessor one")
        return to_payload(
            Envelope(
                event=event,
                id=message.message_id,
                data=decode(message.payload),
                emitted_ms=max(0, message.created_ms),
                key=None if message.key is None else message.key.decode(),
                headers=message.headers,
            )
        )

    def _script(self, encoded: Sequence[bytes]) -> "Sequence[Arg]":
        if not any(payload.startswith(b'{"v":1,"key":') for payload in encoded):
            return super()._script(encoded)
        return _emit_script(self.stream, encoded, "")


def _emit_script(stream: str, encoded: Sequence[bytes], when: str) -> "Sequence[Arg]":
    """Return the command that emits envelopes; ``when`` is "?" in a partition, which may redirect them."""
    from conquiet.processor.keys import keys_of
    from conquiet.processor.scripts import script

    keys = keys_of(stream)
    args: list[Arg] = [value for payload in encoded for value in (payload, when, 0, 0)]
    return script("emit").words((keys.stream, keys.delayed, keys.wake, keys.order), args, in_full=True)


class _Redirected(NamedTuple):
    """A payload to send: its key, and the partition that redirected the key."""

    payload: bytes
    key: str | None
    sent_by: int | None = None


class ToPartitions(ToProcessor):
    """Publishes to the handlers of a ``PartitionedProcessor``; see ``ToProcessor``.

    Each message goes to the partition of its key, messages without a key round-robin. Messages of one key are published
    in order. A batch is one step on the server for each partition.

    Args:
        redis: As for ``ToStream``.
        stream: The partitioned stream.
        event: As for ``ToProcessor``.
        max_payload_bytes: Largest entry.
        replicas: As for ``ToStream``.
    """

    @cached_property
    def _router(self) -> "PartitionRouter":
        from conquiet.processor.partition_routing import PartitionRouter

        return PartitionRouter()

    def _require_name(self, stream: str) -> str:
        from conquiet.processor.partitions import require_stream_name

        return require_stream_name(stream)

    def _send(self, encoded: Sequence[bytes], keys: Sequence[bytes | None]) -> None:
        waiting = [
            _Redirected(payload, None if key is None else key.decode())
            for payload, key in zip(encoded, keys, strict=True)
        ]
        while waiting:
            layout = self._current()
            chosen: dict[int, list[_Redirected]] = {}
            for placed in waiting:
                index = self._router.choose(placed.key, None, placed.sent_by, layout)
                chosen.setdefault(index, []).append(placed)
            waiting = [moved for index, those in chosen.items() for moved in self._send_to(index, those)]
            for placed in waiting:
                self._router.note_sent_on(placed.key or "", placed.sent_by, layout)

    def _send_to(self, index: int, messages: Sequence[_Redirected]) -> list[_Redirected]:
        """Send to one partition; return the messages that it redirects: their keys have moved to another one."""
        from conquiet.processor.partitions import partition_name

        stream = partition_name(self.stream, index)
        words = _emit_script(stream, [placed.payload for placed in messages], "?")
        reply = self._run(words, stream=stream)
        return [
            placed._replace(sent_by=index) for placed, answer in zip(messages, reply, strict=True) if answer[:1] == b">"
        ]

    def _current(self) -> "Layout":
        from conquiet.processor.keys import keys_of
        from conquiet.processor.partitions import read_layout
        from conquiet.redis_transport.commands import pack

        layout = self._router.layout
        if layout is None:
            packed = pack("HMGET", f"{keys_of(self.stream).base}:partitions", "count", "previous", "next")
            layout = self._router.layout = read_layout(self._connection.call("HMGET", packed, stream=self.stream))
        return layout
