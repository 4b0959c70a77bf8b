"""Acknowledgements in batches, without a server."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from conquiet.runtime.acknowledger import Acknowledger
from conquiet.runtime.lease_table import LeaseTable
from conquiet.runtime.message import RuntimeMessage
from conquiet.runtime.settings import RuntimeSettings


def a_message(message_id: str = "1-0", stream: str = "s", **facts: Any) -> RuntimeMessage:
    message = RuntimeMessage(stream, message_id, {"secret": "x"}, leased_at=facts.pop("leased_at", 0.0))
    for name, value in facts.items():
        setattr(message, name, value)
    return message


async def test_a_flush_that_is_not_waited_for_any_longer_leaves_nothing_behind() -> None:
    parts = SimpleNamespace(group="g", table=LeaseTable(["s"]), settings=RuntimeSettings(), on_error=print)
    acknowledger = Acknowledger(cast("Any", SimpleNamespace(name="ack")), cast("Any", parts))
    acknowledger.start()
    acknowledger.expect_reader()
    acknowledger.add(a_message())
    before = asyncio.all_tasks()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await acknowledger.flush()
    await asyncio.sleep(0)
    left = asyncio.all_tasks() - before

    assert left == set()
