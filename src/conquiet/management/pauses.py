"""Pause and resume streams and events with an asyncio client."""

from conquiet.processor.partition_layout import partition_names
from conquiet.processor.pauses import Pauses
from conquiet.redis_transport.client import AsyncClient


async def pause_stream(client: AsyncClient, stream: str, event: str | None = None) -> bool:
    """Pause a stream with all its partitions, or one event of it, on all hosts; False if it was paused already."""
    pauses = Pauses(client)
    return any([await pauses.pause(name, event=event) for name in await partition_names(client, stream)])


async def resume_stream(client: AsyncClient, stream: str, event: str | None = None) -> bool:
    """Resume a paused stream or event; False if it was not paused."""
    pauses = Pauses(client)
    return any([await pauses.resume(name, event=event) for name in await partition_names(client, stream)])
