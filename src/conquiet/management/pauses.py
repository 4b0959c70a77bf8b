"""Pause and resume streams and events, for a process that has an asyncio client."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conquiet.redis_transport.client import AsyncClient


async def pause_stream(client: "AsyncClient", stream: str, event: str | None = None) -> bool:
    """Pause a stream, or one event of it, on all hosts; False if it was paused."""
    from conquiet.processor import Pauses

    return await Pauses(client).pause(stream, event)


async def resume_stream(client: "AsyncClient", stream: str, event: str | None = None) -> bool:
    """End a pause; False if there was none."""
    from conquiet.processor import Pauses

    return await Pauses(client).resume(stream, event)
