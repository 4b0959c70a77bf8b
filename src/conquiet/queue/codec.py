"""The format of a stream entry. Pure.

XADD <stream> * data <json>          SPEC(001 §3): one field, named data, a UTF-8 JSON object
"""

from collections.abc import Sequence
from typing import Any

from conquiet.core.json_codec import CodecError, decode_payload

FIELD = b"data"

NOT_ONE_FIELD = "it does not have exactly one field"
WRONG_FIELD = "its field is not named data"


def decode_fields(fields: Sequence[bytes], *, max_bytes: int) -> dict[str, Any]:
    """Return the payload of an entry, given its fields as the server sends them: name, value, …, flat.

    Raises:
        CodecError: The entry breaks the format.
    """
    if len(fields) != 2:  # noqa: PLR2004 - one name, one value
        raise CodecError(NOT_ONE_FIELD)
    if fields[0] != FIELD:
        raise CodecError(WRONG_FIELD)
    return decode_payload(fields[1], max_bytes=max_bytes)
