"""From the entries of a reply to messages: what is good is delivered, what is not is reported by its id."""

import logging
from collections.abc import Iterable, Mapping

from conquiet.config import QueueConfig
from conquiet.errors import MalformedMessageError
from conquiet.kernel.redaction import printable
from conquiet.queue.codec import CodecError, decode_fields
from conquiet.queue.metrics import observe_queue_deleted, observe_queue_malformed
from conquiet.queue.models import MessageBatch, QueueMessage
from conquiet.queue.recovery import id_key
from conquiet.queue.replies import Entry

logger = logging.getLogger(__name__)


class Deliveries:
    """Builds batches for one stream and group."""

    def __init__(self, config: QueueConfig) -> None:
        self._stream = config.stream_key
        self._group = config.consumer_group
        self._max_bytes = config.max_payload_bytes

    def batch(self, found: Iterable[Entry], *, command: str, counts: Mapping[str, int] | None = None) -> MessageBatch:
        """Decode entries that have just become pending for us.

        Args:
            found: The entries; without fields if they were deleted from the stream.
            command: What brought them, for errors.
            counts: How often each was delivered; once, if it is not there.

        Raises:
            MalformedMessageError: There were entries, and every one was malformed. An empty batch means
                "nothing there" and must not mean "nothing that I could read".
        """
        messages: list[QueueMessage] = []
        malformed: list[MalformedMessageError] = []
        deleted: list[str] = []
        last_id = None
        for message_id, fields in found:
            if last_id is None or id_key(message_id) > id_key(last_id):
                last_id = message_id
            if fields is None:
                deleted.append(message_id)
                continue
            try:
                payload = decode_fields(fields, max_bytes=self._max_bytes)
            except CodecError as error:
                malformed.append(self._malformed(message_id, error.reason, command))
            else:
                count = 1 if counts is None else counts.get(message_id, 1)
                messages.append(QueueMessage(self._stream, self._group, message_id, payload, count))
        if deleted:
            self._report_deleted(deleted)
        if malformed:
            self._report_malformed(malformed)
            if not messages:
                raise self._nothing_but(malformed, command)
        return MessageBatch(messages, malformed=tuple(malformed), deleted=tuple(deleted), last_id=last_id)

    def _malformed(self, message_id: str, reason: str, command: str) -> MalformedMessageError:
        return MalformedMessageError(
            f"entry {message_id} of stream {printable(self._stream)!r} is malformed: {reason}. It stays pending in "
            f"group {printable(self._group)!r}; put it aside and acknowledge it with ack_id()",
            stream=self._stream,
            group=self._group,
            command=command,
            message_id=message_id,
            reason=reason,
        )

    def _nothing_but(self, malformed: list[MalformedMessageError], command: str) -> MalformedMessageError:
        if len(malformed) == 1:
            return malformed[0]
        first = malformed[0]
        return MalformedMessageError(
            f"all {len(malformed)} entries that {command} brought from stream {printable(self._stream)!r} are "
            f"malformed, the first being {first.message_id}: {first.reason}. They stay pending",
            stream=self._stream,
            group=self._group,
            command=command,
            message_id=first.message_id,
            message_ids=tuple(error.message_id for error in malformed if error.message_id is not None),
            reason=first.reason,
        )

    def _report_malformed(self, malformed: list[MalformedMessageError]) -> None:
        observe_queue_malformed(self._stream, len(malformed))
        for error in malformed:
            logger.warning(
                "malformed entry left pending",
                extra={
                    "stream": self._stream,
                    "group": self._group,
                    "message_id": error.message_id,
                    "reason": error.reason,
                },
            )

    def _report_deleted(self, deleted: list[str]) -> None:
        observe_queue_deleted(self._stream, len(deleted))
        logger.warning(
            "pending entries were deleted from the stream",
            extra={"stream": self._stream, "group": self._group, "message_ids": deleted[:20], "count": len(deleted)},
        )
