"""Decrypt ``personalInfo``: NaCl crypto_box, with the nonce in a separate field; every value is unpadded base64url.

A payload that does not authenticate is an error of the *message*. A key that the store does not have is an error of the
*deployment*: every further message would fail too, so it is fatal and nothing is acknowledged.

PyNaCl is imported when a box is first opened: without a key store it is not needed.

See docs/decisions/0021.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from conquiet.core.extras import require_extra
from conquiet.core.redaction import printable
from conquiet.rabbit.decode import Unreadable
from conquiet.rabbit.proca.keystore import KEY_BYTES, KeyStore, from_base64url

if TYPE_CHECKING:
    from nacl.public import Box

# Boxes are cached: computing the shared secret is expensive, and there are few senders.
_BOXES: Final = 256

_MALFORMED: Final = Unreadable("personalInfo is malformed")
_NOT_AUTHENTIC: Final = Unreadable("personalInfo does not authenticate")
_NOT_AN_OBJECT: Final = Unreadable("personalInfo does not hold a JSON object")


@dataclass(frozen=True, slots=True)
class Opened:
    """The personal data. Not shown by ``repr``."""

    fields: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeyFault:
    """The key store has no usable key for this message: an error of the configuration, and fatal.

    Attributes:
        public: The requested public key, shortened and escaped. It is not a secret.
        reason: Why it cannot be used.
    """

    public: str
    reason: str


class Decryptor:
    """Decrypts personal data with the keys of one store."""

    __slots__ = ("_box", "_store")

    def __init__(self, store: KeyStore) -> None:
        require_extra("rabbit", "nacl")
        self._store = store
        self._box = lru_cache(maxsize=_BOXES)(self._make_box)

    def open(self, info: Mapping[str, Any]) -> Opened | Unreadable | KeyFault:
        """Return the decrypted fields, or the reason why there are none."""
        parts = _parts(info)
        if parts is None:
            return _MALFORMED
        encrypt_public, sign_key, nonce, payload = parts
        box = self._box(encrypt_public, sign_key)
        if isinstance(box, KeyFault | Unreadable):
            return box
        plain = _decrypt(box, payload, nonce)
        if plain is None:
            return _NOT_AUTHENTIC
        try:
            fields = msgspec.json.decode(plain)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            fields = None
        return Opened(fields) if isinstance(fields, dict) else _NOT_AN_OBJECT

    def _make_box(self, encrypt_public: str, sign_key: bytes) -> "Box | KeyFault | Unreadable":
        from nacl.exceptions import RuntimeError as NaClRuntimeError
        from nacl.public import Box, PrivateKey, PublicKey

        shown = printable(encrypt_public, limit=64)
        secret = self._store.private_key(encrypt_public)
        if secret is None:
            return KeyFault(shown, "the key store does not have this key")
        if len(secret) != KEY_BYTES:
            return KeyFault(shown, "the key store's private key is not 32 bytes")
        private = PrivateKey(secret)
        if bytes(private.public_key) != from_base64url(encrypt_public):
            # Otherwise every message would fail to authenticate and be dead-lettered.
            return KeyFault(shown, "the key store's private key belongs to another public key")
        try:
            return Box(private, PublicKey(sign_key))
        except NaClRuntimeError:  # a sender's key of low order has no shared secret
            return _MALFORMED

    def __repr__(self) -> str:
        return f"Decryptor({self._store!r})"


def _parts(info: Mapping[str, Any]) -> tuple[str, bytes, bytes, bytes] | None:
    """Return the four parts of ``personalInfo``; None if one is missing or malformed."""
    from nacl.bindings import crypto_box_NONCEBYTES as nonce_bytes

    encrypt, sign = info.get("encryptKey"), info.get("signKey")
    encrypt_public = encrypt.get("public") if isinstance(encrypt, dict) else None
    sign_key = from_base64url(sign.get("public")) if isinstance(sign, dict) else None
    nonce, payload = from_base64url(info.get("nonce")), from_base64url(info.get("payload"))
    if not isinstance(encrypt_public, str) or sign_key is None or nonce is None or payload is None:
        return None
    if len(sign_key) != KEY_BYTES or len(nonce) != nonce_bytes:
        return None
    return encrypt_public, sign_key, nonce, payload


def _decrypt(box: "Box", payload: bytes, nonce: bytes) -> bytes | None:
    from nacl.exceptions import CryptoError
    from nacl.exceptions import ValueError as NaClValueError

    try:
        return box.decrypt(payload, nonce)
    except (CryptoError, NaClValueError):
        return None
