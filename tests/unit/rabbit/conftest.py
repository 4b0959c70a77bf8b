"""The test vector that the original implementation opens."""

import base64
from typing import Any, ClassVar

import pytest


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class Vector:
    """Recipient's private key = bytes 1..32, sender's = 33..64, nonce = 100..123."""

    recipient_private = bytes(range(1, 33))
    sender_private = bytes(range(33, 65))
    nonce = bytes(range(100, 124))
    encrypt_public = "B6N8vBQgk8i3VdwbEOhstCY3StFqqFPtC9_AsrhtHHw"
    sign_public = "WGmv9FBUlzLLqu1eXfmzCm2jHLDldCutWtShp2jxpns"
    payload = (
        "i8Inyu-3jheWvD4_fzuXX4UXyp8MsM3iuWasqQxXn3VaVtW2ccFiPTnPHQ_l3jRDj0XWFEJzSBzv7wTWKiI6hPcAt9ZQJlf9iPe0r1VEiK_i"
    )
    fields: ClassVar = {"email": "jane@example.org", "firstName": "Jane", "lastName": "Doé"}

    @property
    def info(self) -> dict[str, Any]:
        return {
            "payload": self.payload,
            "nonce": b64(self.nonce),
            "encryptKey": {"id": 1, "public": self.encrypt_public},
            "signKey": {"id": 2, "public": self.sign_public},
        }

    @property
    def store(self) -> "DictKeyStore":
        return DictKeyStore({self.encrypt_public: self.recipient_private})

    def seal(self, plain: bytes) -> dict[str, Any]:
        from nacl.public import Box, PrivateKey

        box = Box(PrivateKey(self.sender_private), PrivateKey(self.recipient_private).public_key)
        return self.info | {"payload": b64(box.encrypt(plain, self.nonce).ciphertext)}


class DictKeyStore:
    def __init__(self, keys: dict[str, bytes]) -> None:
        self.keys = keys

    def private_key(self, public: str) -> bytes | None:
        return self.keys.get(public)


@pytest.fixture
def vector() -> Vector:
    return Vector()
