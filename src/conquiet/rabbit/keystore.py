"""Where private keys come from.

A key file that others can read, that somebody else owns, or that is a symbolic link to who knows where, is refused:
whoever could swap it could make us read it.
"""

import base64
import binascii
import os
import re
import stat
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from conquiet.errors import ConfigurationError

KEY_BYTES: Final = 32
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*={0,2}")
_MAX_FILE_BYTES: Final = 4 * 1_048_576


class KeyStore(Protocol):
    """Finds the private key that belongs to a public one.

    Implementations promise: no I/O that can block for long (it is asked on the way of every encrypted message), and no
    private key in their ``repr``.
    """

    def private_key(self, public: str) -> bytes | None:
        """Return the 32 bytes of the private key for the public key's base64url text, or None."""
        ...


class FileKeyStore:
    """Keys from a JSON file ``{"<public>": {"private": "<private>"}}``, base64url without padding.

    Read once, when built. The file must be a regular file of our own user with mode 0600 (or stricter).

    Raises:
        ConfigurationError: The file is missing, unsafe or not a key file. The text names the path, never a key.
    """

    __slots__ = ("_keys", "_path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike):
            raise ConfigurationError("the path of a key file must be a text or a Path")
        self._path = Path(path)
        self._keys = _parse(_read_safely(self._path), self._path)

    def private_key(self, public: str) -> bytes | None:
        """See :class:`KeyStore`."""
        return self._keys.get(public)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"FileKeyStore({str(self._path)!r}, {len(self._keys)} keys)"


def from_base64url(text: object) -> bytes | None:
    """Decode base64url, padded or not. None for anything that is not exactly that."""
    if not isinstance(text, str) or _BASE64URL.fullmatch(text) is None:
        return None  # b64decode would also take the other alphabet, with + and /
    bare = text.rstrip("=")
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None


def _read_safely(path: Path) -> bytes:
    try:
        # NOFOLLOW refuses a link as the last part of the path; NONBLOCK keeps a named pipe from hanging us.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:  # the latter for a name that no file can have
        raise ConfigurationError(
            f"key file {str(path)!a} cannot be opened; it must exist, be readable and not be a symbolic link"
        ) from error
    try:
        facts = os.fstat(handle)  # of what we hold open, not of whatever the path names by now
        if not stat.S_ISREG(facts.st_mode):
            raise ConfigurationError(f"key file {path} is not a regular file")
        if facts.st_uid != os.geteuid():
            raise ConfigurationError(f"key file {path} belongs to another user; it must belong to the one we run as")
        if stat.S_IMODE(facts.st_mode) & 0o177:
            raise ConfigurationError(f"key file {path} is open to others; run: chmod 600 {path}")
        if facts.st_size > _MAX_FILE_BYTES:
            raise ConfigurationError(f"key file {path} is too large to be one")
        return _read_all(handle)
    finally:
        os.close(handle)


def _read_all(handle: int) -> bytes:
    content = b""
    while len(content) <= _MAX_FILE_BYTES and (piece := os.read(handle, 65_536)):
        content += piece
    return content


def _parse(content: bytes, path: Path) -> dict[str, bytes]:
    try:
        entries: Any = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        entries = None  # the parser's error would quote the file: it is not chained
    if not isinstance(entries, dict):
        raise ConfigurationError(
            f'key file {path} must be a JSON object like {{"<public>": {{"private": "<private>"}}}}'
        )
    keys: dict[str, bytes] = {}
    for number, (public, entry) in enumerate(entries.items(), start=1):
        private = from_base64url(entry.get("private")) if isinstance(entry, dict) else None
        if private is None or len(private) != KEY_BYTES:
            raise ConfigurationError(f"key file {path}: entry {number} has no private key of {KEY_BYTES} bytes")
        keys[public] = private
    return keys
