"""Names of a stream's partitions, and the mapping of keys to partitions. Pure.

Partition 0 is the stream itself, so that a stream that already has messages can be partitioned. The others have
separate hash tags (``{orders:1}``, ``{orders:2}``), so that a Redis Cluster spreads them over its masters. All keys of
a partition are in its slot. A key belongs to one partition: the first 32 bits of its SHA-1, modulo the number of
partitions. The scripts compute the same.

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
    """The number of partitions of a stream.

    Attributes:
        count: Number of partitions that messages are emitted to.
        previous: Number before the last growth, while keys still have messages in their old partition.
        following: Number after a growth that has begun and has not reached every partition.
    """

    count: int
    previous: int | None = None
    following: int | None = None

    @property
    def to_read(self) -> int:
        """Number of partitions that workers read."""
        return max(self.count, self.following or 0)

    def places_of(self, key: str) -> list[int]:
        """Return the partitions that may hold the key, in the order in which to try them.

        A partition that is no longer the key's partition and has no message of the key redirects it.
        """
        counts = (self.previous, self.count, self.following)
        return list(dict.fromkeys(partition_of(key, count) for count in counts if count is not None))

    def place_after(self, key: str, sent_by: int | None) -> int:
        """Return the partition after ``sent_by``, which redirected the key; the first if ``sent_by`` is outdated."""
        places = self.places_of(key)
        following = places.index(sent_by) + 1 if sent_by in places else 0
        return places[min(following, len(places) - 1)]


def read_layout(reply: Sequence[Any]) -> Layout:
    """Return the layout from its three fields on the server. Missing fields are None or empty."""
    count, previous, following = reply
    return Layout(int(count or 1), int(previous) if previous else None, int(following) if following else None)


def require_partitions(value: object) -> int:
    """Return ``value`` if it is a valid number of partitions."""
    return require_positive("partitions", value, most=MOST_PARTITIONS)


def require_stream_name(stream: object) -> str:
    """Return ``stream`` if it has no braces, so that its partitions can have hash tags."""
    name = require_text("stream", stream)
    if "{" in name or "}" in name:
        raise ConfigurationError(
            f"stream {name!r} has braces: each partition has a hash tag of its own. Choose a name without braces"
        )
    return name


def partition_name(stream: str, index: int) -> str:
    """Return the key of a partition, which is an ordinary stream."""
    return stream if index == 0 else f"{{{stream}:{index}}}"


def index_of(stream: str, name: str) -> int:
    """Return the index of the partition of ``stream`` with this name."""
    return 0 if name == stream else int(name[len(stream) + 2 : -1])


def partition_of(key: str, count: int) -> int:
    """Return the partition that a key belongs to."""
    return int(hashlib.sha1(text_of_key(key).encode(), usedforsecurity=False).hexdigest()[:8], 16) % count
