"""Compare the clocks of a Redis, its replicas and this host. The server forms entry ids from its clock."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from conquiet.core.redaction import printable
from conquiet.errors import QueueError
from conquiet.management.doctor.findings import Finding
from conquiet.management.doctor.replication import replicas_in
from conquiet.management.redis_admin import RedisAdmin

_MOST_REPLICAS: Final = 10


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The clock of one server.

    Attributes:
        name: "the server", or the address of a replica.
        offset_s: Seconds that it is ahead of the clock of this host; None if it could not be read.
        doubt_s: Measurement error of the offset: half of the round-trip time.
    """

    name: str
    offset_s: float | None
    doubt_s: float = 0.0


def read_clocks(server: RedisAdmin, info: Mapping[str, str]) -> tuple[ClockReading, ...]:
    """Read the clocks of the server and of its replicas that can be reached from here."""
    replicas = replicas_in(info)[:_MOST_REPLICAS]
    others = (_read_replica(server, one.get("ip", ""), one.get("port", "")) for one in replicas)
    return _read("the server", server), *others


def _read_replica(server: RedisAdmin, host: str, port: str) -> ClockReading:
    name = f"replica {printable(host)}:{printable(port)}"
    other = server.connect_to(host, int(port)) if host and port.isdigit() else None
    if other is None:
        return ClockReading(name, None)
    with other:
        try:
            return _read(name, other)
        except QueueError:  # not reachable from here, or another password
            return ClockReading(name, None)


def _read(name: str, server: RedisAdmin) -> ClockReading:
    server.now_ms()  # opens the connection, so that the measured time is only the reply's
    before_s, asked_s = time.time(), time.monotonic()
    there_s = server.now_ms() / 1000
    took_s = time.monotonic() - asked_s
    return ClockReading(name, there_s - (before_s + took_s / 2), took_s / 2)


def check_clocks(clocks: tuple[ClockReading, ...], most_s: float) -> Iterator[Finding]:
    """Report two clocks that differ by more than ``most_s``, measurement error not counted."""
    if not clocks or clocks[0].offset_s is None:
        return
    server, offset_s = clocks[0], clocks[0].offset_s
    if abs(offset_s) - server.doubt_s > most_s:
        yield Finding.warning(
            "redis.clocks",
            f"the clock of the server is {_apart(offset_s)} the clock of this host",
            "ages, delays and schedules that this host computes are off by as much; a step back of the server's clock "
            "after a stream was deleted repeats ids; only an inbox that compares digests distinguishes them",
            "synchronise both with NTP",
        )
    for replica in clocks[1:]:
        if replica.offset_s is None:
            yield Finding.note(
                "redis.clocks",
                f"the clock of {replica.name} was not compared: it cannot be reached from here",
                "a replica with a slow clock repeats ids after a fail-over",
                "run the doctor where the replica can be reached",
            )
        elif abs(apart := replica.offset_s - offset_s) - server.doubt_s - replica.doubt_s > most_s:
            yield Finding.warning(
                "redis.clocks",
                f"the clock of {replica.name} is {_apart(apart)} the clock of the server",
                "after a fail-over the new master repeats ids that the old one gave to entries it had not replicated "
                "yet; only an inbox that compares digests distinguishes such a message from a handled one",
                "synchronise both with NTP before the next fail-over",
            )


def _apart(offset_s: float) -> str:
    return f"{abs(offset_s):.1f} s {'ahead of' if offset_s > 0 else 'behind'}"
