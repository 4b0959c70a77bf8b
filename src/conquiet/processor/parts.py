"""The client, names, settings and clock that all parts of one processor share."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from conquiet.processor.emitter import Emitter
from conquiet.processor.jobs import JobRecorder
from conquiet.processor.keys import Keys
from conquiet.processor.pauses import Pauses
from conquiet.processor.server_clock import ServerClock
from conquiet.processor.settings import ProcessorSettings
from conquiet.redis_transport.client import AsyncClient


@dataclass(frozen=True, slots=True)
class ProcessorParts:
    """Parts of a processor that exist before its start. The parts that run messages share them.

    Attributes:
        client: A client without retries. The processor closes it.
        group: The consumer group.
        consumer_id: Name of the engine in it.
        keys: Keys by stream.
        settings: Settings of the processor.
        emitter: For ``ctx.emit``.
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
    emitter: Emitter
    jobs: JobRecorder | None
    pauses: Pauses
    log_tracebacks: bool = False
    clock: ServerClock = field(default_factory=ServerClock)
