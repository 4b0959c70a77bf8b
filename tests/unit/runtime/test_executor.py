"""A user's functions become settlements."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conquiet.core.settlement import ACKNOWLEDGE, KEEP_PENDING, KeepPending, Release, Settlement
from conquiet.errors import ConfigurationError, DeliveriesExhaustedError, InfrastructureError
from conquiet.runtime.context import MessageContext
from conquiet.runtime.executor import HandlerExecutor, PendingSettlement, settlement_of
from conquiet.runtime.message import RuntimeMessage


class Leases:
    claim_idle_s = 30.0
    group = "g"

    async def acknowledge(self, message: RuntimeMessage) -> None: ...

    async def extend(self, message: RuntimeMessage) -> bool:
        return True


def an_executor(handler: Any, on_exhausted: Any = None, on_malformed: Any = None) -> HandlerExecutor:
    return HandlerExecutor(handler, on_exhausted, on_malformed, threads=lambda: ThreadPoolExecutor(1), group="g")


async def outcome(begun: PendingSettlement) -> Settlement:
    return begun if isinstance(begun, Settlement) else await begun


@pytest.mark.parametrize("suspends", [False, True])
async def test_a_handler_that_returns_is_acknowledged_by_the_shared_object(*, suspends: bool) -> None:
    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        if suspends:
            await asyncio.sleep(0)

    begun = an_executor(handler).execute(RuntimeMessage("s", "1-0", {}), Leases())

    assert isinstance(begun, Settlement) is not suspends
    assert await outcome(begun) is ACKNOWLEDGE


@pytest.mark.parametrize("suspends", [False, True])
@pytest.mark.parametrize(("error", "kind"), [(ValueError(), KeepPending), (InfrastructureError("away"), Release)])
async def test_a_handlers_error_is_in_its_settlement(*, error: Exception, kind: type, suspends: bool) -> None:
    async def handler(message: RuntimeMessage, ctx: MessageContext) -> None:
        if suspends:
            await asyncio.sleep(0)
        raise error

    settlement = await outcome(an_executor(handler).execute(RuntimeMessage("s", "1-0", {}), Leases()))

    assert type(settlement) is kind
    assert settlement.failure is error


async def test_a_handler_that_returns_an_awaitable_has_not_done_its_work() -> None:
    async def handler(message: RuntimeMessage, ctx: MessageContext) -> Any:
        return asyncio.sleep(0)

    settlement = await outcome(an_executor(handler).execute(RuntimeMessage("s", "1-0", {}), Leases()))

    assert isinstance(settlement.failure, ConfigurationError)


async def test_a_message_not_run_stays_pending_unless_a_hook_acknowledges_it() -> None:
    seen: list[str] = []

    async def hook(message: RuntimeMessage, ctx: MessageContext) -> None:
        seen.append(message.id)

    message = RuntimeMessage("s", "1-0", {}, delivery_count=21)
    without, with_hooks = an_executor(hook), an_executor(hook, hook, hook)

    assert isinstance((await outcome(without.exhausted(message, Leases()))).failure, DeliveriesExhaustedError)
    assert [without.handles_malformed, with_hooks.handles_malformed] == [False, True]
    assert await outcome(with_hooks.exhausted(message, Leases())) == KEEP_PENDING
    assert await outcome(with_hooks.malformed(message, Leases())) == KEEP_PENDING
    assert seen == ["1-0", "1-0"]


def test_only_an_infrastructure_fault_releases() -> None:
    fault = InfrastructureError("away")

    assert settlement_of(fault) == Release(fault)
    assert isinstance(settlement_of(ValueError()), KeepPending)
