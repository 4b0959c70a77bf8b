"""Acknowledgements in batches, without a server."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.runtime.messages import a_message

from conquiet.runtime.acknowledger import Acknowledger
from conquiet.runtime.lease_table import LeaseTable
from conquiet.runtime.settings import RuntimeSettings


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
