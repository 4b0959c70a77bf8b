"""``on_malformed``: the application decides about entries that are not messages."""

from typing import Any

import pytest
from tests.integration.runtime.conftest import MakeEngine, Pending, Run
from tests.redis_clients import RawRedis

from conquiet.core.json_codec import TOO_LARGE
from conquiet.queue.codec import NOT_ONE_FIELD, WRONG_FIELD
from conquiet.runtime import MessageContext, RuntimeMessage, SyncMessageContext
from conquiet.testing import wait_until_async


async def _never(message: RuntimeMessage, ctx: MessageContext) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"other": "x"}, WRONG_FIELD),
        ({"data": "{", "more": "x"}, NOT_ONE_FIELD),
        ({"data": "x" * 2_000}, TOO_LARGE),
    ],
)
async def test_a_malformed_entry_goes_to_the_hook_which_may_acknowledge_it(
    make_engine: MakeEngine,
    run: Run,
    raw: RawRedis,
    stream: str,
    pending: Pending,
    fields: dict[str, str],
    reason: str,
) -> None:
    raw.xgroup_create(stream, "processor", "0", mkstream=True)
    entry = raw.xadd(stream, fields).decode()
    seen: list[tuple[str, str, dict[str, Any]]] = []

    async def on_malformed(message: RuntimeMessage, ctx: MessageContext) -> None:
        seen.append((message.id, message.malformed, message.data))
        await ctx.ack()

    running = run(make_engine(_never, on_malformed=on_malformed, max_payload_bytes=1_000, claim_idle_ms=60))
    await wait_until_async(lambda: bool(seen))
    await wait_until_async(lambda: not pending())
    await running.stop()

    assert seen == [(entry, reason, {})]
    assert len(running.errors) == 1


async def test_a_malformed_entry_kept_by_the_hook_is_delivered_again_without_bytes(
    make_engine: MakeEngine, run: Run, raw: RawRedis, stream: str, pending: Pending
) -> None:
    """Even past ``max_deliveries``: only the hook can settle it."""
    large = "x" * 1_000_000
    raw.xgroup_create(stream, "processor", "0", mkstream=True)
    raw.xadd(stream, {"other": large})
    reasons: list[str] = []

    def on_malformed(message: RuntimeMessage, ctx: SyncMessageContext) -> None:
        reasons.append(message.malformed)
        if len(reasons) == 6:
            ctx.ack()
        else:
            raise LookupError

    before = raw.info("stats")["total_net_output_bytes"]
    running = run(make_engine(_never, on_malformed=on_malformed, max_deliveries=2, claim_idle_ms=60))
    await wait_until_async(lambda: len(reasons) == 6)
    await wait_until_async(lambda: not pending())
    await running.stop()

    assert len(set(reasons)) == 1
    assert reasons[0]
    assert raw.info("stats")["total_net_output_bytes"] - before < 2 * len(large)
    assert sum(isinstance(error, LookupError) for error in running.errors) == 5


async def test_without_the_hook_a_malformed_entry_stays_pending_and_is_reported_once(
    make_engine: MakeEngine, run: Run, raw: RawRedis, stream: str, pending: Pending
) -> None:
    raw.xgroup_create(stream, "processor", "0", mkstream=True)
    raw.xadd(stream, {"other": "x"})

    running = run(make_engine(_never, claim_idle_ms=60))
    await wait_until_async(lambda: bool(pending()) and pending()[0]["times_delivered"] >= 4)
    await running.stop()

    assert len(running.errors) == 1
    assert len(pending()) == 1
