"""The same as conquiet_async on uvloop, when it is installed."""

import asyncio

import uvloop
from conquiet_async import main  # type: ignore[import-not-found]

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
