"""Read raw stream entries that the engine could not decode."""

from collections.abc import Sequence

from conquiet.core.json_codec import TOO_LARGE, CodecError
from conquiet.processor.envelope import EnvelopeError, from_payload
from conquiet.queue.codec import decode_fields
from conquiet.redis_transport.client import AsyncClient
from conquiet.redis_transport.client_commands import command, commands

_ENDS = 20
_SHOWN = 65_536
_LARGEST = 2**30


async def fields_of(client: AsyncClient, stream: str, entry_id: str, reason: str) -> dict[str, str] | None:
    """Return the fields of an entry as text that JSON can hold. None if the entry does not exist.

    An entry that is only too large, or that ``decode`` could not read, is returned whole, because its content is stored
    nowhere else. For other entries each name and value is truncated.
    """
    found = await command(client, "XRANGE", stream, entry_id, entry_id, stream=stream)
    if not found:
        return None
    fields = found[0][1]
    most = None if reason == TOO_LARGE or reason.startswith("decode()") else _SHOWN
    return {_shown(name, most): _shown(value, most) for name, value in zip(fields[::2], fields[1::2], strict=True)}


async def has_messages(client: AsyncClient, stream: str) -> bool:
    """Return True if a message of a processor is among the oldest or newest entries of a stream."""
    oldest, newest = ("XRANGE", stream, "-", "+"), ("XREVRANGE", stream, "+", "-")
    sent = [(*words, "COUNT", _ENDS) for words in (oldest, newest)]
    ends = await commands(client, sent, action="reading entries", stream=stream)
    return any(_is_message(fields) for end in ends for _, fields in end)


def _is_message(fields: Sequence[bytes]) -> bool:
    try:
        from_payload(decode_fields(fields, max_bytes=_LARGEST), entry_id="0-0")
    except (CodecError, EnvelopeError):
        return False
    return True


def _shown(raw: bytes, most: int | None) -> str:
    return raw[:most].decode(errors="backslashreplace")
