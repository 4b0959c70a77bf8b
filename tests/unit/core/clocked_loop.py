"""An event loop with a clock that the test advances."""

import asyncio


class ClockedLoop(asyncio.SelectorEventLoop):
    """Timers run when ``pass_time`` has come to them, and not by the machine's clock."""

    now = 1_000.0

    def time(self) -> float:
        return self.now

    async def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for _ in range(5):  # the timers that are due, and what they have woken
            await asyncio.sleep(0)
