"""Every worker of the pool gets work, however slowly messages arrive."""

import asyncio

from tests.integration.runtime.conftest import Enqueue, MakeEngine, Run

from conquiet.runtime import MessageContext, RuntimeMessage
from conquiet.testing import wait_until_async


async def test_messages_that_arrive_slowly_reach_all_workers(
    make_engine: MakeEngine, run: Run, enqueue: Enqueue
) -> None:
    """No handler has ended. The fetcher pauses while a message waits for a worker, and resumes when it has one."""
    go = asyncio.Event()
    begun: list[str] = []

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        begun.append(message.id)
        await go.wait()

    engine_run = run(make_engine(handler, concurrency=20))
    for wanted in (4, 8, 12, 16, 20):
        enqueue(4)
        await _length(begun, wanted)

    go.set()
    await engine_run.stop()
    assert len(set(begun)) == 20


async def _length(items: list[str], wanted: int) -> None:
    await wait_until_async(lambda: len(items) == wanted)
