"""Malformed entries are returned by every claim, without their bytes."""

import pytest
from tests.integration.runtime.conftest import MakeEngine, Pending, Run
from tests.redis_clients import RawRedis

from conquiet.runtime import MessageContext, RuntimeMessage
from conquiet.testing import wait_until_async

LARGE = "x" * 4_000_000


@pytest.mark.parametrize("fields", [{"data": LARGE}, {"other": LARGE}, {"data": "{}", "more": LARGE}])
async def test_a_claim_does_not_transfer_a_large_malformed_entry(
    make_engine: MakeEngine, run: Run, raw: RawRedis, stream: str, pending: Pending, fields: dict[str, str]
) -> None:
    raw.xgroup_create(stream, "processor", "0", mkstream=True)
    entry = raw.xadd(stream, fields)
    raw.xreadgroup("processor", "dead", {stream: ">"})
    raw.xclaim(stream, "processor", "dead", 0, [entry], idle=10_000, justid=True)
    before = raw.info("stats")["total_net_output_bytes"]

    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        raise AssertionError

    running = run(make_engine(handler, claim_idle_ms=60))
    await wait_until_async(lambda: pending()[0]["times_delivered"] >= 6)
    await running.stop()

    assert raw.info("stats")["total_net_output_bytes"] - before < len(LARGE)
    assert len(running.errors) == 1
