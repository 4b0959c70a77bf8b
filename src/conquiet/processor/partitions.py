"""Names and places of a stream's partitions. Pure.

Partition 0 is the stream itself, so that a stream can be partitioned that has messages already. The others have hash
tags of their own (``{orders:1}``, ``{orders:2}``), so that a Redis Cluster spreads them over its masters; what the
processor keeps beside a partition lies in the partition's slot. A key belongs to one partition: the first 32 bits of
its SHA-1, modulo their number. The scripts compute the same.

See docs/decisions/0051.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conquiet.core.validation import require_positive, require_text
from conquiet.errors import ConfigurationError
from conquiet.processor.envelope import text_of_key

MOST_PARTITIONS = 1_024


@dataclass(frozen=True, slots=True)
class Layout:
    """How many partitions a stream has.

    Attributes:
        count: Partitions that messages are emitted to.
        previous: Their number before the last growth, while keys are still at work where they were before it.
        following: Their number after a growth that has begun and not reached every partition.
    """

    count: int
    previous: int | None = None
    following: int | None = None

    @property
    def to_read(self) -> int:
        """Partitions that workers read."""
        return max(self.count, self.following or 0)

    def places_of(self, key: str) -> list[int]:
        """Return the partitions that may have the key, in the order in which to ask them.

        Each says whether the key is there: one that has no message of it, and is not its place any more, sends it on.
        """
        counts = (self.previous, self.count, self.following)
        return list(dict.fromkeys(partition_of(key, count) for count in counts if count is not None))

    def place_after(self, key: str, sent_by: int | None) -> int:
        """Return the partition to ask after one that has sent the key on; the first if it is of an earlier layout."""
        places = self.places_of(key)
        following = places.index(sent_by) + 1 if sent_by in places else 0
        return places[min(following, len(places) - 1)]


def read_layout(reply: Sequence[Any]) -> Layout:
    """Return the layout from its three fields on the server; those that are missing are None or empty."""
    count, previous, following = reply
    return Layout(int(count or 1), int(previous) if previous else None, int(following) if following else None)


def require_partitions(value: object) -> int:
    """Return ``value`` if it can be a number of partitions."""
    count = require_positive("partitions", value)
    if count > MOST_PARTITIONS:
        raise ConfigurationError(f"partitions must be at most {MOST_PARTITIONS}, got {count}")
    return count


def require_stream_name(stream: object) -> str:
    """Return ``stream`` if its partitions can have hash tags of their own."""
    name = require_text("stream", stream)
    if "{" in name or "}" in name:
        raise ConfigurationError(
            f"stream {name!r} has braces: each partition has a hash tag of its own. Choose a name without braces"
        )
    return name


def partition_name(stream: str, index: int) -> str:
    """Return the key of a partition: an ordinary stream."""
    return stream if index == 0 else f"{{{stream}:{index}}}"


def index_of(stream: str, name: str) -> int:
    """Return which partition of ``stream`` has this name."""
    return 0 if name == stream else int(name[len(stream) + 2 : -1])


def partition_of(key: str, count: int) -> int:
    """Return the partition that a key belongs to."""
    return int(hashlib.sha1(text_of_key(key).encode(), usedforsecurity=False).hexdigest()[:8], 16) % count
