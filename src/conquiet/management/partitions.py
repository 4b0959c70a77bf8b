"""Show the partitions of a stream as one stream: find their keys and merge their reports.

Partition 0 is the stream, see docs/decisions/0051.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from conquiet.management.models import ConsumerReport, ConsumerState, GroupReport, StreamReport
from conquiet.management.redis_admin import RedisAdmin, as_bytes, display_name, require_admin
from conquiet.processor.partitions import partition_name, read_layout
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.errors import ResponseError
from conquiet.redis_transport.hash_tags import slot_prefix_bytes
from conquiet.redis_transport.ids import parse_id

_PARTITION: Final = re.compile(rb"\{(?P<stream>[^{}]+):(?P<index>[1-9][0-9]{0,3})\}")
_FROM_LIVE_TO_DEAD: Final = (ConsumerState.LIVE, ConsumerState.IDLE, ConsumerState.UNKNOWN, ConsumerState.DEAD)


def companion(stream: bytes, suffix: bytes) -> bytes:
    """Return a key that the processor stores for a stream, in the slot of the stream."""
    return b"%b:%b" % (slot_prefix_bytes(stream), suffix)


def is_companion(key: bytes) -> bool:
    """Return whether the processor stores this stream for another one, and it is shown there."""
    return b"}" in key and key.endswith((b":dead", b":wake"))


def count_partitions(server: RedisAdmin, stream: str | bytes) -> int:
    """Return the number of partitions that workers read; 1 if this user may not read the number."""
    require_admin(server)
    raw = as_bytes(stream)
    if b"{" in raw or b"}" in raw:
        return 1
    packed = pack("HMGET", companion(raw, b"partitions"), "count", "previous", "next")
    reply = server.send(packed, 1, command="HMGET", stream=display_name(raw))[0]
    return 1 if isinstance(reply, ResponseError) else read_layout(reply).to_read


def partition_keys(server: RedisAdmin, stream: str | bytes) -> list[bytes]:
    """Return the keys of a stream's partitions. A stream without partitions is its only partition."""
    return names_of(as_bytes(stream), count_partitions(server, stream))


def existing_partitions(server: RedisAdmin, stream: str) -> list[str]:
    """Return the partitions that exist; the stream if none does, so that the next command reports it as missing."""
    names = [key.decode() for key in partition_keys(server, stream)]
    return names if len(names) == 1 else [name for name in names if server.is_stream(name)] or [stream]


def names_of(stream: bytes, count: int) -> list[bytes]:
    """Return the keys of the first ``count`` partitions."""
    name = stream.decode("latin-1")
    return [stream, *(partition_name(name, index).encode("latin-1") for index in range(1, count))]


class PartitionedStreams:
    """Finds the stream that a key is a partition of. The number of partitions of each stream is read once."""

    def __init__(self, server: RedisAdmin) -> None:
        self._server = server
        self._counts: dict[bytes, int] = {}

    def stream_of(self, key: bytes) -> bytes:
        """Return the stream that the key is a partition of, else the key."""
        match = _PARTITION.fullmatch(key)
        if match is None:
            return key
        stream = match["stream"]
        if stream not in self._counts:
            self._counts[stream] = count_partitions(self._server, stream)
        return stream if int(match["index"]) < self._counts[stream] else key


def join_reports(stream: bytes, reports: Sequence[StreamReport], partitions: int) -> StreamReport:
    """Merge the reports of a stream's partitions. Groups and consumers are merged by name."""
    groups: dict[bytes, list[GroupReport]] = {}
    for report in reports:
        for group in report.groups:
            groups.setdefault(group.raw_name, []).append(group)
    first_ids = [report.first_id for report in reports if report.first_id is not None]
    paused = [report.paused for report in reports if report.paused is not None]
    return StreamReport(
        key=display_name(stream),
        length=sum(report.length for report in reports),
        first_id=min(first_ids, key=parse_id, default=None),
        last_id=max((report.last_id for report in reports), key=parse_id),
        memory_bytes=sum_known([report.memory_bytes for report in reports]),
        delayed=sum_known([report.delayed for report in reports]),
        dead_letters=sum_known([report.dead_letters for report in reports]),
        paused=tuple(sorted({event for one in paused for event in one})) if paused else None,
        groups=tuple(_join_groups(those) for those in groups.values()),
        raw_key=stream,
        partitions=partitions,
    )


def _join_groups(groups: Sequence[GroupReport]) -> GroupReport:
    consumers: dict[str, ConsumerReport] = {}
    for group in groups:
        for one in group.consumers:
            known = consumers.get(one.name)
            consumers[one.name] = one if known is None else _join_consumers(known, one)
    ages = [group.oldest_age_s for group in groups if group.oldest_age_s is not None]
    return replace(
        groups[0],
        lag=sum_known([group.lag for group in groups]),
        pending=sum(group.pending for group in groups),
        last_delivered_id=max((group.last_delivered_id for group in groups), key=parse_id),
        oldest_age_s=max(ages, default=None),
        consumers=tuple(consumers.values()),
    )


def _join_consumers(one: ConsumerReport, other: ConsumerReport) -> ConsumerReport:
    state = min(one.state, other.state, key=_FROM_LIVE_TO_DEAD.index)
    idle_s = min((each.idle_s for each in (one, other) if each.idle_s is not None), default=None)
    return ConsumerReport(one.name, one.pending + other.pending, idle_s, state)


def sum_known(values: Sequence[int | None]) -> int | None:
    """Return the sum of the values; None if a value is unknown."""
    known = [value for value in values if value is not None]
    return None if len(known) < len(values) else sum(known)
