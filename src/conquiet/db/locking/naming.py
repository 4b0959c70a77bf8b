"""Names of advisory locks. Pure.

MySQL allows 64 characters and ignores case; MariaDB allows 192 and does not. So a name is lower
case and at most 64: a readable beginning and a digest of everything it stands for.

Two spellings that the server takes for one row must give one name, or the lock excludes nobody.
Which spellings those are depends on column type and collation, which we do not know; so ids are
folded generously (1, "1", "01" and "1.0" alike; "Abc", "abc " and "ábc" alike). Folding too much
costs a wait, folding too little an update.
"""

import hashlib
import json
import unicodedata
from decimal import Decimal, InvalidOperation
from typing import Any, Final

MAX_LENGTH: Final = 64
_DIGEST_BYTES: Final = 16


def lock_name(prefix: str, *parts: str) -> str:
    """Return ``{prefix}:{first part}:{digest}``, at most 64 characters, lower case."""
    # JSON keeps ("a", "b:c") and ("a:b", "c") apart.
    digest = hashlib.blake2b(json.dumps([prefix, *parts]).encode(), digest_size=_DIGEST_BYTES).hexdigest()
    readable = ":".join([prefix, *parts[:1]]).lower()
    ascii_only = "".join(char if char.isascii() and char.isprintable() else "_" for char in readable)
    return f"{ascii_only[: MAX_LENGTH - len(digest) - 1]}:{digest}"


def row_lock_name(prefix: str, table: str, id_value: Any, *, default_schema: str | None) -> str:
    """Name the lock of one row. ``orders`` and ``shop.orders`` are one table to a connection to ``shop``."""
    qualified = table if "." in table or not default_schema else f"{default_schema}.{table}"
    return lock_name(prefix, qualified.lower(), canonical_id(id_value))


def canonical_id(id_value: Any) -> str:
    """Return one spelling for all that a server might take for the same id."""
    if isinstance(id_value, bool):
        id_value = int(id_value)
    if isinstance(id_value, bytes | bytearray | memoryview):
        id_value = bytes(id_value).decode("utf-8", "backslashreplace")
    shown = str(id_value).strip()
    try:
        number = Decimal(shown)
    except InvalidOperation:
        pass
    else:
        if number.is_finite():
            return f"{number.normalize():f}" if abs(number.adjusted()) < MAX_LENGTH else str(number.normalize())
    decomposed = unicodedata.normalize("NFKD", shown)
    return "".join(char for char in decomposed if not unicodedata.combining(char)).casefold()
