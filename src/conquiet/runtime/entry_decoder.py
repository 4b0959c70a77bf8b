"""Decode raw stream entries into messages. Each malformed entry is reported once."""

from collections import OrderedDict, defaultdict
from typing import Any

from conquiet.core.entry_format import format_of
from conquiet.core.json_codec import TOO_LARGE, CodecError, decode_payload
from conquiet.core.redaction import printable
from conquiet.core.seen_ids import SeenIds
from conquiet.errors import MalformedMessageError, QueueError
from conquiet.metrics.registry import QUEUE_MESSAGES_DELETED_TOTAL, QUEUE_MESSAGES_MALFORMED_TOTAL
from conquiet.metrics.safety import count
from conquiet.queue.codec import FIELD, NOT_ONE_FIELD, WRONG_FIELD
from conquiet.runtime.message import RuntimeMessage
from conquiet.runtime.parts import EngineParts

_KNOWN = 1_000


class EntryDecoder:
    """Decodes the entries of one group.

    Args:
        parts: The parts that all parts of the engine share. If its executor handles malformed entries, they are
            delivered, too, with the reason in place of data.
    """

    def __init__(self, parts: EngineParts) -> None:
        self._group, self._on_error = parts.group, parts.on_error
        self._max_payload_bytes, self._format = parts.settings.max_payload_bytes, format_of(parts.settings.decode)
        self._handles_malformed = parts.executor.handles_malformed
        self._malformed: defaultdict[str, OrderedDict[str, str]] = defaultdict(OrderedDict)
        """Known malformed entries, by stream, the last thousand of each: the server does not send them again."""
        # Every claim returns malformed and deleted entries again. Each is reported once.
        self._reported = SeenIds()

    def known_malformed(self, stream: str) -> list[str]:
        """Return the ids of known malformed entries."""
        return list(self._malformed[stream])

    def decode(self, stream: str, raw: Any, *, leased_at: float) -> list[RuntimeMessage]:
        """Return the messages. Report malformed and deleted entries."""
        limit, other_format = self._max_payload_bytes, self._format
        messages: list[RuntimeMessage] = []
        deleted = []
        for raw_id, fields in raw:
            if not fields:
                deleted.append(raw_id.decode())
                continue
            try:
                if other_format is not None:
                    data, raw_payload = other_format.read(raw_id.decode(), fields, max_bytes=limit)
                    messages.append(RuntimeMessage(stream, raw_id.decode(), data, raw_payload, leased_at))
                    continue
                if len(fields) != 2:  # noqa: PLR2004 - one name, one value
                    raise CodecError(NOT_ONE_FIELD)
                if fields[0] != FIELD:
                    raise CodecError(WRONG_FIELD)
                data = decode_payload(fields[1], max_bytes=limit)
            except CodecError as error:
                messages += self.malformed(stream, raw_id.decode(), error.reason, leased_at=leased_at)
            else:
                messages.append(RuntimeMessage(stream, raw_id.decode(), data, fields[1], leased_at))
        if deleted:
            self.report_deleted(stream, deleted)
        return messages

    def malformed(self, stream: str, message_id: str, reason: str, *, leased_at: float) -> list[RuntimeMessage]:
        """Report a malformed entry once. Return it, without its content, if malformed entries are delivered."""
        known = self._malformed[stream]
        reason = reason or known.get(message_id, "")  # the script returns known malformed entries without a reason
        if self._format is not None and reason in {NOT_ONE_FIELD, WRONG_FIELD}:
            reason = TOO_LARGE  # the script withholds only large entries; it may report several fields
        known[message_id] = reason
        if len(known) > _KNOWN:
            known.popitem(last=False)
        if self._reported.add(stream, message_id):
            count(QUEUE_MESSAGES_MALFORMED_TOTAL, stream)
            self._on_error(
                MalformedMessageError(
                    f"entry {message_id} of stream {printable(stream)!r} cannot be delivered: {reason}. "
                    "It stays pending until it is acknowledged or moved",
                    stream=stream,
                    group=self._group,
                    message_id=message_id,
                    reason=reason,
                )
            )
        if not self._handles_malformed:
            return []
        return [RuntimeMessage(stream, message_id, {}, b"", leased_at, malformed=reason)]

    def report_deleted(self, stream: str, deleted: list[str]) -> None:
        """Report pending entries that were deleted from their stream."""
        ids = [message_id for message_id in deleted if self._reported.add(stream, message_id)]
        if not ids:
            return
        count(QUEUE_MESSAGES_DELETED_TOTAL, stream, n=len(ids))
        shown = ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")  # noqa: PLR2004 - enough to search for
        self._on_error(
            QueueError(
                f"{len(ids)} pending entries of stream {printable(stream)!r} were deleted before they were handled "
                f"({shown}): the stream is trimmed below what the group still needs",
                stream=stream,
                group=self._group,
            )
        )
