"""Read entries that other programs write with several plain fields, using the user's ``decode`` function. Pure.

    XADD payments * order 17 amount 12.50 ──▶ {"order": b"17", "amount": b"12.50"} ──decode──▶ {"order": 17, …}

Without ``decode`` an entry has one field ``data`` that holds a JSON object, and anything else is malformed. With it,
an entry is malformed if it is too large, if ``decode`` raises, or if it returns no mapping with text keys. The reason
names the type of the exception and never its text, which may quote the entry.

See docs/decisions/0009.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from conquiet.core.decode_function import Decode
from conquiet.core.json_codec import KEY_NOT_TEXT, TOO_LARGE, CodecError

DECODE_FAILED: Final = "decode() raised"
NOT_A_MAPPING: Final = "decode() did not return a mapping"


class EntryFormat:
    """Reads entries with the user's function.

    Args:
        decode: The function.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode

    def __call__(self, fields: dict[str, bytes]) -> Mapping[str, Any]:
        """Call the function."""
        return self._decode(fields)

    def read(self, entry_id: str, fields: Sequence[bytes], *, max_bytes: int) -> tuple[dict[str, Any], bytes]:
        """Return the payload, and raw bytes that are equal for every delivery even if the function's result varies.

        Args:
            entry_id: Id of the entry.
            fields: Names and values, as the flat list that the server sends.
            max_bytes: A larger entry is malformed.

        Raises:
            CodecError: The entry is malformed.
        """
        del entry_id
        return self.payload_of(fields, max_bytes=max_bytes), join_fields(fields)

    def payload_of(self, fields: Sequence[bytes], *, max_bytes: int) -> dict[str, Any]:
        """Return the result of the function for an entry.

        Raises:
            CodecError: The entry is malformed.
        """
        if sum(map(len, fields)) > max_bytes:
            raise CodecError(TOO_LARGE)
        named = {name.decode(errors="backslashreplace"): value for name, value in pairs(fields)}
        try:
            payload = self._decode(named)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            reason = f"{DECODE_FAILED} {type(error).__name__}"
        else:
            return _checked(payload)
        # Outside the except block, so that the error, which may quote the entry, is not its context.
        raise CodecError(reason)


def pairs(fields: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Return pairs of name and value from the flat list that a server sends."""
    return list(zip(fields[::2], fields[1::2], strict=False))


def join_fields(fields: Sequence[bytes]) -> bytes:
    """Return all names and values as one byte string with length prefixes, so that different entries differ."""
    return b"".join(b"%d:%b" % (len(part), part) for part in fields)


def identity_of(entry_id: str, fields: Sequence[bytes]) -> str:
    """Return an id for an entry without one: the entry id, which may be reused, and a digest of the fields."""
    return f"{entry_id}.{hashlib.sha256(join_fields(fields)).hexdigest()[:16]}"


def format_of(decode: Decode | None) -> EntryFormat | None:
    """Return the format for ``decode``. None selects the strict format."""
    return decode if decode is None or isinstance(decode, EntryFormat) else EntryFormat(decode)


def _checked(payload: object) -> dict[str, Any]:
    if not isinstance(payload, Mapping):
        raise CodecError(NOT_A_MAPPING)
    if not all(isinstance(key, str) for key in payload):
        raise CodecError(KEY_NOT_TEXT)
    return dict(payload)
