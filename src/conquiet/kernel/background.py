"""What runs in the background between ``__aenter__`` and ``__aexit__``."""

import asyncio
from typing import Any


async def until_ready(running: asyncio.Task[Any], ready: asyncio.Event) -> None:
    """Wait until what was started in the background is ready or over; raise what ended it.

    If the caller is cancelled meanwhile, ``__aexit__`` will never be called: the task is cancelled too and waited for,
    so that nothing is left to start working later on, with nobody who could stop it.
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
