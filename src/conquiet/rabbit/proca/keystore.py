"""Key stores: private keys from a file or from a mapping.

A key file that other users can read, that another user owns, or that is a symbolic link, is refused: another user could
read or replace it.
"""

import base64
import binascii
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol, Self

import msgspec

from conquiet.errors import ConfigurationError

KEY_BYTES: Final = 32
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*={0,2}")
_MAX_FILE_BYTES: Final = 4 * 1_048_576


class KeyStore(Protocol):
    """Finds the private key that belongs to a public one.

    An implementation must not block for long, because it is called for every encrypted message, and must not show a
    private key in its ``repr``.
    """

    def private_key(self, public: str) -> bytes | None:
        """Return the 32 bytes of the private key for the public key's base64url text, or None."""
        ...


class _HeldKeys:
    """Private keys by their public keys. ``repr`` shows where they come from and their number."""

    __slots__ = ("_keys", "_source")

    def __init__(self, keys: dict[str, bytes], source: str) -> None:
        self._keys = keys
        self._source = source

    def private_key(self, public: str) -> bytes | None:
        """See :class:`KeyStore`."""
        return self._keys.get(public)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._source}, {len(self._keys)} keys)"


class MemoryKeyStore(_HeldKeys):
    """Keys that are held in memory.

    :meth:`from_text` takes the same as JSON, :meth:`from_env` the JSON of an environment variable.

    Args:
        keys: ``{"<public>": "<private>"}``, or ``{"<public>": {"private": "<private>"}}``.

    Raises:
        ConfigurationError: The keys have another form. The text names the source, never a key.
    """

    __slots__ = ()

    def __init__(self, keys: Mapping[str, object]) -> None:
        source = "a mapping of keys"
        super().__init__(_keys_of(keys, source, flat=True), source)

    @classmethod
    def from_text(cls, text: str, *, source: str = "a text with keys") -> Self:
        """Read keys from a JSON text."""
        if not isinstance(text, str):
            raise ConfigurationError(f"{source} must be a text of JSON")
        store = cls({})
        store._source, store._keys = source, _parse(text.encode(errors="replace"), source)
        return store

    @classmethod
    def from_env(cls, name: str) -> Self:
        """Read keys from an environment variable, which child processes and ``/proc`` show to the same user."""
        text = os.environ.get(name)
        if text is None:
            raise ConfigurationError(f"there is no environment variable {name}, which should hold keys")
        return cls.from_text(text, source=f"environment variable {name}")


class FileKeyStore(_HeldKeys):
    """Keys from a JSON file ``{"<public>": {"private": "<private>"}}``, base64url without padding.

    It is read once, at construction. The file must be a regular file of the current user with mode 0600 (or stricter).

    Args:
        path: The file.
        secret_volume: The file is in a Secret volume of Kubernetes: a symbolic link into the folder ``..data``, owned
            by root or by our user, perhaps readable by the group. Others may not read it and the group may not write.

    Raises:
        ConfigurationError: The file is missing, unsafe or not a key file. The text names the path, never a key.
    """

    __slots__ = ()

    def __init__(self, path: str | os.PathLike[str], *, secret_volume: bool = False) -> None:
        if not isinstance(path, str | os.PathLike):
            raise ConfigurationError("the path of a key file must be a text or a Path")
        path = Path(path)
        content = _read_from_volume(path) if secret_volume else _read_safely(path)
        super().__init__(_parse(content, f"key file {path}"), repr(str(path)))


def from_base64url(text: object) -> bytes | None:
    """Decode base64url with or without padding. Return None for any other text."""
    if not isinstance(text, str) or _BASE64URL.fullmatch(text) is None:
        return None  # b64decode also accepts the other alphabet, with + and /
    bare = text.rstrip("=")
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None


def _read_from_volume(path: Path) -> bytes:
    """Read a file of a Secret volume: ``keys.json -> ..data/keys.json``, ``..data -> ..2026_11_16…``."""
    try:
        real = path.resolve(strict=True)
        folder = path.parent.resolve(strict=True)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"key file {str(path)!a} cannot be opened; it must exist and be readable") from error
    if folder not in real.parents:
        raise ConfigurationError(f"key file {path} leads out of its folder: that is no Secret volume")
    return _read_safely(real, owners=(0, os.geteuid()), forbidden=0o137)


def _read_safely(path: Path, *, owners: tuple[int, ...] | None = None, forbidden: int = 0o177) -> bytes:
    try:
        # NOFOLLOW refuses a link as the last part of the path; with NONBLOCK opening a named pipe does not block.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        hint = "; in a Secret volume of Kubernetes say secret_volume=True" if _is_volume(path) else ""
        raise ConfigurationError(
            f"key file {str(path)!a} cannot be opened; it must exist, be readable and not be a symbolic link{hint}"
        ) from error
    try:
        facts = os.fstat(handle)  # of the open file: the path may name another one meanwhile
        if not stat.S_ISREG(facts.st_mode):
            raise ConfigurationError(f"key file {path} is not a regular file")
        if facts.st_uid not in (owners or (os.geteuid(),)):
            raise ConfigurationError(f"key file {path} belongs to another user; it must belong to the one we run as")
        if stat.S_IMODE(facts.st_mode) & forbidden:
            raise ConfigurationError(f"key file {path} is open to others; run: chmod 600 {path}")
        if facts.st_size > _MAX_FILE_BYTES:
            raise ConfigurationError(f"key file {path} is too large to be one")
        return _read_all(handle)
    finally:
        os.close(handle)


def _is_volume(path: Path) -> bool:
    try:
        return (path.parent / "..data").is_symlink()
    except (OSError, ValueError):
        return False


def _read_all(handle: int) -> bytes:
    content = b""
    while len(content) <= _MAX_FILE_BYTES and (piece := os.read(handle, 65_536)):
        content += piece
    return content


def _parse(content: bytes, source: str) -> dict[str, bytes]:
    try:
        entries: Any = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        entries = None  # the parser's error is not chained, because it quotes the file
    return _keys_of(entries, source)


def _keys_of(entries: Any, source: str, *, flat: bool = False) -> dict[str, bytes]:
    if not isinstance(entries, Mapping):
        raise ConfigurationError(f'{source} must be a JSON object like {{"<public>": {{"private": "<private>"}}}}')
    keys: dict[str, bytes] = {}
    for number, (public, entry) in enumerate(entries.items(), start=1):
        private = from_base64url(entry.get("private") if isinstance(entry, Mapping) else entry if flat else None)
        if not isinstance(public, str) or private is None or len(private) != KEY_BYTES:
            raise ConfigurationError(f"{source}: entry {number} has no private key of {KEY_BYTES} bytes")
        keys[public] = private
    return keys
