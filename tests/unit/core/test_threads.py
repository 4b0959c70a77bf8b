"""Calls from another thread into an event loop."""

import asyncio
from concurrent.futures import Future

import pytest

from conquiet.core.threads import wait_on_loop


class EndsAtTheLimit(Future[str]):
    """Gets its result in the moment in which a wait for it has reached its limit."""

    def result(self, timeout: float | None = None) -> str:
        if not self.done():
            self.set_result("done")
            raise TimeoutError
        return super().result(timeout)


async def work() -> str:
    return "done"


def test_a_call_that_ends_as_its_wait_ends_is_no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    call = work()
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda *_: EndsAtTheLimit())

    with asyncio.Runner() as runner:
        assert wait_on_loop(runner.get_loop(), call, too_late=LookupError) == "done"
    call.close()
