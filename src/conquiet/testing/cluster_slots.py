"""Slots of a Redis Cluster: the slot of a key, and the owners in a reply to CLUSTER SLOTS. Pure, no client library."""

from __future__ import annotations

from binascii import crc_hqx
from typing import Any

SLOTS = 16_384

NodeAddress = tuple[str, int]


def key_slot(key: str) -> int:
    """Return the slot of a key: CRC-16 (XMODEM) of its hash tag, or of the whole key without one."""
    raw = key.encode()
    opened = raw.find(b"{")
    if opened >= 0:
        closed = raw.find(b"}", opened + 1)
        if closed > opened + 1:
            raw = raw[opened + 1 : closed]
    return crc_hqx(raw, 0) % SLOTS


def slot_ranges(reply: Any, *, with_replicas: bool = False) -> dict[range, Any]:
    """Return the owner of each range of slots; ``with_replicas``: the master, then its replicas in order."""
    found: dict[range, Any] = {}
    for first, last, *nodes in reply:
        addresses = [(_host(node[0]), int(node[1])) for node in nodes]
        slots = range(first, last + 1)
        found[slots] = (addresses[0], *sorted(addresses[1:])) if with_replicas else addresses[0]
    return found


def masters_of(reply: Any) -> list[NodeAddress]:
    """Return the owners of slots, each once, in the order of their first slot."""
    ranges = slot_ranges(reply)
    return list(dict.fromkeys(ranges[slots] for slots in sorted(ranges, key=lambda slots: slots.start)))


def _host(raw: Any) -> str:
    return raw.decode() if isinstance(raw, bytes) else str(raw)
