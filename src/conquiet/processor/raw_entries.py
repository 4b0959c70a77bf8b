"""Stream entries as the server stores them, for those that the engine could not read."""

from collections.abc import Sequence

from conquiet.core.json_codec import TOO_LARGE, CodecError
from conquiet.processor.envelope import EnvelopeError, from_payload
from conquiet.processor.scripts import script
from conquiet.queue.codec import decode_fields
from conquiet.redis_transport.client import AsyncClient

_ENDS = 20
_SHOWN = 65_536
_LARGEST = 2**30


async def fields_of(client: AsyncClient, stream: str, entry_id: str, reason: str) -> dict[str, str] | None:
    """Return the fields of an entry as text that JSON can hold; None if the entry is gone.

    An entry that is only too large, or that ``decode`` could not read, is returned whole: its content is stored nowhere
    else. Of others each name and value is cut.
    """
    fields = await script("entry").call(client, (stream,), (entry_id,), stream=stream)
    if not fields:
        return None
    most = None if reason == TOO_LARGE or reason.startswith("decode()") else _SHOWN
    return {_shown(name, most): _shown(value, most) for name, value in zip(fields[::2], fields[1::2], strict=True)}


async def has_messages(client: AsyncClient, stream: str) -> bool:
    """Return True if a message of a processor is among the oldest or newest entries of a stream."""
    ends = await script("ends").call(client, (stream,), (_ENDS,), stream=stream)
    return any(_is_message(fields) for end in ends for _, fields in end)


def _is_message(fields: Sequence[bytes]) -> bool:
    try:
        from_payload(decode_fields(fields, max_bytes=_LARGEST), entry_id="0-0")
    except (CodecError, EnvelopeError):
        return False
    return True


def _shown(raw: bytes, most: int | None) -> str:
    return raw[:most].decode(errors="backslashreplace")
