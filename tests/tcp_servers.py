"""Small TCP servers with replies that no real server sends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from conquiet.testing.proxy import close_listener

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handle: Handle) -> AsyncIterator[int]:
    """Serve each connection by ``handle`` and yield the port.

    Return once all connections are closed: asyncio closes the listener only, and an event loop that ends before a
    handler has seen the end of its connection leaves the socket open.
    """
    open_connections: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_connections.add(task)
        writers.append(writer)
        try:
            await handle(reader, writer)
        finally:
            open_connections.discard(task)

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        await close_listener(listener)
        for writer in writers:
            writer.close()
        await asyncio.gather(*open_connections, *(writer.wait_closed() for writer in writers), return_exceptions=True)
