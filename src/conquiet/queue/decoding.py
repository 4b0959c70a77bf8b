"""Turn entries of a reply into messages; report malformed and deleted entries by their ids."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from conquiet.config import QueueConfig
from conquiet.core.entry_format import EntryFormat, format_of
from conquiet.core.json_codec import CodecError
from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.errors import MalformedMessageError
from conquiet.queue.codec import decode_fields
from conquiet.queue.metrics import count_queue
from conquiet.queue.models import MessageBatch, QueueMessage
from conquiet.redis_transport.ids import parse_id
from conquiet.redis_transport.replies import StreamEntry

logger = FactLogger(__name__)


class MessageDecoder:
    """Builds batches for one stream and group."""

    def __init__(self, config: QueueConfig) -> None:
        self._stream = config.stream_key
        self._group = config.consumer_group
        self._about = {"stream": self._stream, "group": self._group}
        self._max_bytes = config.max_payload_bytes
        self._format: EntryFormat | None = format_of(config.decode)

    def batch(
        self, found: Iterable[StreamEntry], *, command: str, counts: Mapping[str, int] | None = None
    ) -> MessageBatch:
        """Decode entries that have just become pending for this consumer.

        Args:
            found: The entries; without fields if they were deleted from the stream.
            command: The command that returned them, for errors.
            counts: Delivery count of each; 1 where it is missing.

        Raises:
            MalformedMessageError: There were entries, and every one was malformed. An empty batch means that there was
                no entry.
        """
        messages: list[QueueMessage] = []
        malformed: list[MalformedMessageError] = []
        deleted: list[str] = []
        last_id = None
        for message_id, fields in found:
            if last_id is None or parse_id(message_id) > parse_id(last_id):
                last_id = message_id
            if fields is None:
                deleted.append(message_id)
                continue
            try:
                payload, payload_bytes = self._read(message_id, fields)
            except CodecError as error:
                malformed.append(self._malformed(message_id, error.reason, command))
            else:
                count = 1 if counts is None else counts.get(message_id, 1)
                message = QueueMessage(self._stream, self._group, message_id, payload, count)
                messages.append(message.with_bytes(payload_bytes))
        if deleted:
            self._report_deleted(deleted)
        if malformed:
            self._report_malformed(malformed)
            if not messages:
                raise self._all_malformed(malformed, command)
        return MessageBatch(messages, malformed=tuple(malformed), deleted=tuple(deleted), last_id=last_id)

    def _read(self, message_id: str, fields: Sequence[bytes]) -> tuple[dict[str, Any], bytes]:
        if self._format is not None:
            return self._format.read(message_id, fields, max_bytes=self._max_bytes)
        return decode_fields(fields, max_bytes=self._max_bytes), fields[1]

    def _malformed(self, message_id: str, reason: str, command: str) -> MalformedMessageError:
        return self._error(
            f"entry {message_id} of stream {printable(self._stream)!r} is malformed: {reason}. It stays pending in "
            f"group {printable(self._group)!r}; save it elsewhere and acknowledge it with ack_id()",
            command,
            message_id=message_id,
            reason=reason,
        )

    def _all_malformed(self, malformed: list[MalformedMessageError], command: str) -> MalformedMessageError:
        first = malformed[0]
        if len(malformed) == 1:
            return first
        return self._error(
            f"all {len(malformed)} entries that {command} returned from stream {printable(self._stream)!r} are "
            f"malformed, the first being {first.message_id}: {first.reason}. They stay pending",
            command,
            message_id=first.message_id,
            message_ids=tuple(one for error in malformed for one in error.message_ids),
            reason=first.reason,
        )

    def _error(self, problem: str, command: str, **facts: Any) -> MalformedMessageError:
        return MalformedMessageError(problem, command=command, **self._about, **facts)

    def _report_malformed(self, malformed: list[MalformedMessageError]) -> None:
        count_queue(self._stream, "malformed", len(malformed))
        for error in malformed:
            facts = {"message_id": error.message_id, "reason": error.reason}
            logger.warning("malformed entry left pending", **self._about, **facts)

    def _report_deleted(self, deleted: list[str]) -> None:
        count_queue(self._stream, "deleted", len(deleted))
        facts: dict[str, Any] = {"message_ids": deleted[:20], "count": len(deleted)}
        logger.warning("pending entries were deleted from the stream", **self._about, **facts)
