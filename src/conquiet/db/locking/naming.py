"""Names of advisory locks. Pure. See docs/decisions/0003.

MySQL allows 64 characters and ignores case; MariaDB allows 192 and does not. So a name is lower
case and at most 64: a readable beginning and a digest of all parts.

Two spellings that the server treats as one row should give one name. Which spellings those are depends on
column type and collation, which are unknown here; so ids are folded generously (1, "1", "01" and "1.0" alike;
"Abc", "abc ", "ábc" and "ab\u200bc" alike; "Bjørn" and "Bjorn", "œuvre" and "oeuvre", "あ" and "ア" alike).

Promised: ids of ASCII that differ in more than case, control characters, outer blanks and the spelling
of a number have different names, and every id has one. Not promised: that every pair that some collation treats as
equal has one name. No update depends on that: ``modify`` reads with a lock on the row itself
(``LockBackend.acquire_and_read``), and an UPDATE that has read nothing cannot be stale. Folding too much costs a
wait; with too little folding one of two writers waits at the row.
"""

import hashlib
import unicodedata
from decimal import MAX_EMAX, MIN_EMIN, Context
from functools import lru_cache
from typing import Any, Final

MAX_LENGTH: Final = 64
_DIGEST_BYTES: Final = 16
_PLAIN_INT: Final = 10**18
_BEYOND_BMP: Final = 0xFFFF
# A separate context: an application may have set the context of its thread to 6 digits, and an id must not depend on
# that. No traps: text that is not a number becomes NaN, and a number that is too large becomes infinite.
_NUMBERS: Final = Context(prec=100, Emax=MAX_EMAX, Emin=MIN_EMIN, capitals=0, traps=[])


def lock_name(prefix: str, *parts: str) -> str:
    """Return ``{prefix}:{first part}:{digest}``, at most 64 characters, lower case."""
    # Lengths keep ("a", "b:c") and ("a:b", "c") apart.
    whole = "".join([f"{len(part)}:{part}" for part in (prefix, *parts)])
    digest = hashlib.blake2b(whole.encode("utf-8", "backslashreplace"), digest_size=_DIGEST_BYTES).hexdigest()
    readable = ":".join([prefix, *parts[:1]])[: MAX_LENGTH - 2 * _DIGEST_BYTES - 1].lower()
    if not (readable.isascii() and readable.isprintable()):
        readable = "".join([char if char.isascii() and char.isprintable() else "_" for char in readable])
    return f"{readable[: MAX_LENGTH - 2 * _DIGEST_BYTES - 1]}:{digest}"


def row_lock_name(prefix: str, table: str, id_value: Any, *, default_schema: str | None) -> str:
    """Name the lock of one row. ``orders`` and ``shop.orders`` are one table to a connection to ``shop``."""
    try:
        return _cached_row_lock_name(prefix, table, id_value, default_schema)
    except TypeError:  # an id that cannot be hashed, such as a bytearray
        return _row_lock_name(prefix, table, id_value, default_schema)


def _row_lock_name(prefix: str, table: str, id_value: Any, default_schema: str | None) -> str:
    qualified = table if "." in table or not default_schema else f"{default_schema}.{table}"
    return lock_name(prefix, qualified.lower(), canonical_id(id_value))


# Each name is needed twice within a write: to acquire the lock and to release it. Ids that are equal to
# Python (1, True, 1.0) are one id here too, so they may share an entry.
_cached_row_lock_name = lru_cache(4_096)(_row_lock_name)


def canonical_id(id_value: Any) -> str:
    """Return one spelling for all spellings that a server might treat as the same id."""
    if type(id_value) is int and abs(id_value) < _PLAIN_INT:
        return str(id_value)  # most ids; the same result as below, faster
    if isinstance(id_value, bool):
        id_value = int(id_value)
    if isinstance(id_value, bytes | bytearray | memoryview):
        id_value = bytes(id_value).decode("utf-8", "backslashreplace")
    shown = str(id_value).strip()
    number = _NUMBERS.create_decimal(shown)
    if number.is_finite():
        number = _NUMBERS.normalize(number)
        if not number:
            return "0"  # and not "-0"
        return f"{number:f}" if abs(number.adjusted()) < MAX_LENGTH else _NUMBERS.to_sci_string(number)
    if shown.isascii() and shown.isprintable():
        return shown.lower()
    # Twice: casefold() turns ß into two characters and its name into one, and names are upper case.
    return "".join(map(_folded, unicodedata.normalize("NFKD", shown.casefold()))).casefold()


def _folded(char: str) -> str:
    """Return the base character that a collation without accents may treat this one as; empty if it ignores it."""
    if unicodedata.category(char)[0] in "CM":  # control and format characters, marks: ignored by collations
        return ""
    if char.isascii():
        return char
    if ord(char) > _BEYOND_BMP:
        return "\ufffd"  # all the same to utf8mb4_general_ci and utf8mb4_unicode_ci
    # LATIN SMALL LETTER O WITH STROKE is an O, LATIN SMALL LIGATURE OE an OE; HIRAGANA and KATAKANA LETTER A an A.
    return unicodedata.name(char, char).partition(" WITH ")[0].rpartition(" ")[2]
