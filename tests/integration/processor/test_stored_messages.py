"""A message is stored as it came, whatever its handler did to it and however large or deep it is."""

from collections.abc import Callable
from typing import Any

from conquiet.processor import JobContext, Processor, RetryPolicy
from conquiet.testing import wait_until_async

TWICE = RetryPolicy.fixed(0.01, max_attempts=2)


async def test_a_handler_that_changes_its_data_changes_neither_its_retry_nor_its_dead_letter(
    make_processor: Callable[..., Processor], place: Any
) -> None:
    processor = make_processor()
    seen: list[dict[str, Any]] = []

    @processor.handler("pay", retry=TWICE)
    async def pay(ctx: JobContext) -> None:
        seen.append(dict(ctx.data))
        ctx.data.pop("to")
        ctx.data["at"] = object()  # and this could not even be written
        raise LookupError

    async with processor:
        await processor.emit("pay", {"to": "jane", "n": [1, 2.5, "ü"]})
        await wait_until_async(lambda: _is(place.dead, 1))
        (dead,) = (await processor.dead_letters().list()).items

    assert seen == [{"to": "jane", "n": [1, 2.5, "ü"]}] * 2
    assert dead.record.payload is not None
    assert dead.record.payload["data"] == {"to": "jane", "n": [1, 2.5, "ü"]}


async def _is(found: Callable[[], Any], wanted: int) -> bool:
    return bool(await found() == wanted)
