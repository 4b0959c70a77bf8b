"""Read entries of other programs as messages of a Processor. Pure.

    one field data, a JSON object with the key v    an envelope: decoded as usual
    anything else                                   decode(fields) ──▶ {"event": …, "data": {…}}, optionally with "id"

A Processor writes retries, delayed messages and replays into the same stream as envelopes, so the stream holds both
kinds. A message without an id gets the entry id and a digest of its fields as id, so that the inbox recognises it even
if ``decode`` returns something else the second time.

See docs/decisions/0009.
"""

from collections.abc import Sequence
from typing import Any

from conquiet.core.entry_format import EntryFormat, identity_of
from conquiet.core.json_codec import CodecError, encode_payload
from conquiet.processor.envelope import VERSION
from conquiet.queue.codec import decode_fields


class EnvelopeFormat(EntryFormat):
    """Reads envelopes, and other entries with the user's ``decode`` function."""

    def read(self, entry_id: str, fields: Sequence[bytes], *, max_bytes: int) -> tuple[dict[str, Any], bytes]:
        """Return the envelope and its bytes. See ``EntryFormat.read``."""
        try:
            own = decode_fields(fields, max_bytes=max_bytes)
        except CodecError:
            own = {}
        if "v" in own:
            return own, fields[1]
        payload = {"v": VERSION, "id": identity_of(entry_id, fields), **self.payload_of(fields, max_bytes=max_bytes)}
        return payload, encode_payload(payload, max_bytes=max_bytes)
