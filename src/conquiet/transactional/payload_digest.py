"""Decide whether two messages with one id are the same message. Pure.

Redis generates entry ids from its clock. After a fail-over to a replica with a slower clock, or after a stream was
deleted and its server's clock set back, it assigns ids again that earlier messages had. So the inbox stores a digest of
the payload bytes with an id that a server assigned, and compares it when the id exists already:

    stored digest    this digest    result
    equal            equal          the same message: a duplicate
    D1               D2             another message: a first time, under the key ``id#D2``
    none             any            a duplicate: the row is of a version that stored none, or its id is the producer's
    any              none           a duplicate: nothing to compare

An id from the *producer* (an outbox id, the AMQP ``message_id``, a business key) is trusted: it defines which messages
are the same. The same order sent again with a new time stamp in it is still the same order.
"""

import hashlib
from typing import Any

from conquiet.core.json_codec import canonical
from conquiet.transactional.inbox_keys import MAX_PART_BYTES, InboxKey


def digest_of(msg: Any, key: InboxKey, *, compare: bool | None) -> bytes | None:
    """Return the digest to store with a message, None if its id is enough.

    Args:
        msg: The message. The digest is of its ``payload_bytes``, or else of its ``payload`` as JSON.
        key: Its key.
        compare: True returns a digest always, False never, None for ids that a server assigned.
    """
    if compare is False or (compare is None and not _made_by_server(msg, key)):
        return None
    data = getattr(msg, "payload_bytes", b"")
    if not data and compare:
        data = json_bytes(getattr(msg, "payload", None))
    return hashlib.sha256(data).digest() if data else None


def is_same(stored: bytes | None, digest: bytes | None) -> bool:
    """Return whether the row of an id belongs to this message. Without two digests the id alone decides."""
    return not stored or not digest or stored == digest


def key_of_other(key: InboxKey, digest: bytes) -> InboxKey:
    """Return the key of a message with an id that another message had before."""
    message_id = f"{key.id}#{digest.hex()}"
    if len(message_id.encode()) > MAX_PART_BYTES:
        message_id = f"#{hashlib.sha256(message_id.encode()).hexdigest()}"
    return key._replace(id=message_id)


def json_bytes(value: Any) -> bytes:
    """Return ``canonical(value)``; no bytes if the value is not JSON."""
    try:
        return canonical(value)
    except (TypeError, ValueError, RecursionError):
        return b""


def _made_by_server(msg: Any, key: InboxKey) -> bool:
    return not getattr(msg, "id_is_producers", False) and key.id == getattr(msg, "id", None)
