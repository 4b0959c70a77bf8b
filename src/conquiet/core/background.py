"""Start a background task in ``__aenter__``."""

import asyncio
from typing import Any


async def wait_ready(running: asyncio.Task[Any], ready: asyncio.Event) -> None:
    """Wait until a background task is ready or has ended. Raise its error.

    If the caller is cancelled during the wait, ``__aexit__`` is never called. The task is then cancelled and awaited,
    because no caller could stop it.
    """
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        raise
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    if running.done():
        running.result()
