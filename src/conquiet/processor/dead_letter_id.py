"""The id of a dead letter, which names one dead letter of all partitions of a stream. Pure.

    1763244000000-0      in the stream itself, which is partition 0
    1763244000000-0.3    in partition 3

The number before the dot is the id of the entry. The server assigns it in each partition independently, so two
partitions may assign the same one.

See docs/decisions/0051.
"""

import re
from typing import NamedTuple

from conquiet.errors import ConfigurationError
from conquiet.redis_transport.ids import parse_id

_DEAD_ID = re.compile(r"(?P<entry_id>[0-9]{1,20}-[0-9]{1,20})(?:\.(?P<partition>[1-9][0-9]{0,3}))?")


class DeadLetterId(NamedTuple):
    """The parts of an id. They sort by age; dead letters of the same age and sequence sort by partition."""

    milliseconds: int
    sequence: int
    partition: int

    @property
    def entry_id(self) -> str:
        """The id of the entry in the dead-letter stream of its partition."""
        return f"{self.milliseconds}-{self.sequence}"

    def start_after(self, partition: int) -> str:
        """Return the start of an XRANGE over the newer dead letters of a partition."""
        return self.entry_id if partition > self.partition else f"({self.entry_id}"

    def start_before(self, partition: int) -> str:
        """Return the start of an XREVRANGE over the older dead letters of a partition."""
        return self.entry_id if partition < self.partition else f"({self.entry_id}"


def dead_id_of(entry_id: str, partition: int) -> str:
    """Return the id of the dead letter with this entry in a partition."""
    return f"{entry_id}.{partition}" if partition else entry_id


def is_dead_id(value: object) -> bool:
    """Return whether a value has the form of a dead letter's id."""
    return isinstance(value, str) and _DEAD_ID.fullmatch(value) is not None


def parse_dead_id(value: object) -> DeadLetterId:
    """Return the parts of an id; raise ``ConfigurationError`` if the value has another form."""
    found = _DEAD_ID.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ConfigurationError("a dead letter's id looks like 1763244000000-0, or 1763244000000-0.3 in partition 3")
    return DeadLetterId(*parse_id(found["entry_id"]), int(found["partition"] or 0))
