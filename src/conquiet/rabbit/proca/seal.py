"""Encrypt ``personalInfo``: the reverse of ``decrypt``, for producers and tests.

The box is NaCl ``crypto_box`` (X25519, XSalsa20-Poly1305) over the fields as one JSON object in UTF-8:

    {"payload": <ciphertext with its tag>, "nonce": <24 bytes>,
     "encryptKey": {"public": <recipient>}, "signKey": {"public": <sender>}}

Each value is base64url without padding. The nonce is not part of the payload.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

from conquiet.core.extras import require_extra
from conquiet.errors import ConfigurationError
from conquiet.rabbit.proca.keystore import KEY_BYTES, from_base64url
from conquiet.rabbit.proca.messages import PersonalInfo


def seal(
    fields: Mapping[str, Any], *, recipient_public: str, sender_private: bytes | str, nonce: bytes | None = None
) -> PersonalInfo:
    """Return ``fields`` encrypted as the ``personalInfo`` of an action.

    Args:
        fields: The personal data, which the recipient gets in ``contact``: any JSON object.
        recipient_public: The recipient's public key as base64url, as in a key file.
        sender_private: The sender's private key: 32 bytes, or their base64url.
        nonce: 24 bytes that are never used twice with the same keys. None: random bytes; only tests pass a value.

    Raises:
        ConfigurationError: A key or the nonce is malformed, or the fields are not JSON. No value is quoted.
    """
    require_extra("rabbit", "nacl")
    from nacl.bindings import crypto_box_NONCEBYTES as nonce_bytes
    from nacl.public import Box, PrivateKey, PublicKey
    from nacl.utils import random

    public = _key("recipient_public", recipient_public)
    sender = PrivateKey(_key("sender_private", sender_private))
    nonce = random(nonce_bytes) if nonce is None else nonce
    if len(nonce) != nonce_bytes:
        raise ConfigurationError(f"nonce must be {nonce_bytes} bytes")
    try:
        plain = json.dumps(dict(fields), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        raise ConfigurationError("the fields to seal must be something JSON can hold") from None
    sealed = Box(sender, PublicKey(public)).encrypt(plain, nonce).ciphertext
    return PersonalInfo(
        payload=_text(sealed),
        nonce=_text(nonce),
        encryptKey={"public": recipient_public},
        signKey={"public": _text(bytes(sender.public_key))},
    )


def _key(name: str, given: bytes | str) -> bytes:
    key = from_base64url(given) if isinstance(given, str) else given
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise ConfigurationError(f"{name} must be a key of {KEY_BYTES} bytes")
    return key


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
