"""Failed attempts are freed immediately, without the garbage collector.

See tests/integration/runtime/test_garbage.py.
"""

import weakref
from collections.abc import Callable

import pytest

from conquiet.processor import JobContext, Processor, RetryPolicy
from conquiet.testing import wait_until_async


@pytest.mark.parametrize("attempts", [1, 2], ids=["dead-lettered", "retried"])
@pytest.mark.usefixtures("no_collector")
async def test_the_error_of_an_attempt_is_freed_without_the_garbage_collector(
    make_processor: Callable[..., Processor], attempts: int
) -> None:
    errors: list[weakref.ref[Exception]] = []
    processor = make_processor()

    class RefusedError(Exception):
        def __init__(self) -> None:
            errors.append(weakref.ref(self))

    @processor.handler("pay", retry=RetryPolicy.fixed(600, max_attempts=attempts))
    async def pay(ctx: JobContext) -> None:
        raise RefusedError

    async with processor:
        for _ in range(5):
            await processor.emit("pay", {})
        await wait_until_async(lambda: len(errors) == 5 and not any(error() for error in errors))
