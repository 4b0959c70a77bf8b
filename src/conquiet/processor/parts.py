"""The client, names, settings and clock that all parts of one processor share."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from conquiet.processor.jobs import JobRecorder
from conquiet.processor.keys import Keys
from conquiet.processor.pauses import Pauses
from conquiet.processor.settings import ProcessorSettings
from conquiet.redis_transport.client import AsyncClient


class ServerClock:
    """The clock of this host, corrected by the difference to the server's clock. Times in messages are server times."""

    __slots__ = ("_ahead_ms",)

    def __init__(self) -> None:
        self._ahead_ms = 0

    def now_ms(self) -> int:
        """Return the estimated server time in milliseconds since the epoch."""
        return int(time.time() * 1000) + self._ahead_ms

    def correct(self, ahead_ms: int) -> None:
        """Record how far the server's clock is ahead of this host's."""
        self._ahead_ms = ahead_ms


@dataclass(frozen=True, slots=True)
class ProcessorParts:
    """Parts of a processor that exist before its start. The parts that run messages share them.

    Attributes:
        client: A client without retries. The processor closes it.
        group: The consumer group.
        consumer_id: Name of the engine in it.
        keys: Keys by stream.
        settings: Settings of the processor.
        jobs: Records job states. None if they are not kept.
        pauses: Tracks paused streams and events.
        log_tracebacks: Log whole tracebacks of handlers.
        clock: The server's clock.
    """

    client: AsyncClient
    group: str
    consumer_id: str
    keys: Mapping[str, Keys]
    settings: ProcessorSettings
    jobs: JobRecorder | None
    pauses: Pauses
    log_tracebacks: bool = False
    clock: ServerClock = field(default_factory=ServerClock)
