"""A handler's context offers the same members in memory and on real servers."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from tests.integration.app.conftest import Place

from conquiet import App, Emit, JobContext, RetryPolicy
from conquiet.errors import ConfigurationError, JobCancelledError, LeaseLostError, PayloadError
from conquiet.processor import NewMessage, SyncJobContext
from conquiet.runtime import MessageContext

RETRY = RetryPolicy.fixed(0.02, max_attempts=3)


def members(kind: type) -> set[str]:
    """Return the public members of a class, attributes of its instances included."""
    slots = {name for base in kind.__mro__ for name in getattr(base, "__slots__", ())}
    return {name for name in {*dir(kind), *slots} if not name.startswith("_")}


CALLS: Mapping[str, Callable[[Any], Any]] = {
    "ack": lambda ctx: ctx.ack(),
    "emit": lambda ctx: ctx.emit("other"),
    "emit_many": lambda ctx: ctx.emit_many([NewMessage("other"), NewMessage("other")]),
    "log": lambda ctx: ctx.log("a line", page=2),
    "progress": lambda ctx: ctx.progress(0.4, "page 2 of 5"),
    "raise_if_cancelled": lambda ctx: ctx.raise_if_cancelled(),
}
DELIVERY_CALLS: Mapping[str, Callable[[Any], Any]] = {
    "ack": lambda delivery: delivery.ack(),
    "check_lease": lambda delivery: delivery.check_lease(),
    "extend": lambda delivery: delivery.extend(),
}
VALUES = {"lease_lost": False, "acknowledged": False, "delivery_count": 1}
JOB_VALUES = {
    "attempt": 1,
    "cancelled": False,
    "caused": None,
    "data": {"page": 1},
    "deadline": None,
    "event": "report",
    "id": "m1",
    "is_last_attempt": False,
    "is_overdue": False,
    "key": "k",
    "max_attempts": 3,
    "span_context": None,
}


def other(app: App) -> list[int]:
    """Handle the event ``other`` and return the attempts of its messages."""
    seen: list[int] = []

    @app.handler("other")
    async def see(ctx: JobContext) -> None:
        seen.append(ctx.attempt)

    return seen


def test_the_contract_covers_every_member_of_a_context() -> None:
    delivery = {"group", "id", "lease_remaining_s", "message", "stream"}

    assert members(JobContext) | members(SyncJobContext) == {
        *CALLS, *JOB_VALUES, "delivery", "envelope", "group", "headers", "stream"
    }  # fmt: skip
    assert members(MessageContext) == {*DELIVERY_CALLS, *VALUES, *delivery}


@pytest.mark.parametrize("name", sorted(CALLS))
async def test_an_async_handler_calls_each_method_of_its_context(place: Place, name: str) -> None:
    app = place.app()
    other(app)
    ended: list[str] = []

    @app.handler("report")
    async def report(ctx: JobContext) -> None:
        result = CALLS[name](ctx)
        if isinstance(result, Awaitable):
            await result
        ended.append(name)

    async with place.running(app) as running:
        await app.emit("report")
        await running.settle()

    assert ended == [name]


@pytest.mark.parametrize("name", sorted(CALLS))
async def test_a_plain_handler_calls_each_method_of_its_context(place: Place, name: str) -> None:
    app = place.app()
    other(app)
    ended: list[str] = []

    @app.handler("report")
    def report(ctx: SyncJobContext) -> None:
        CALLS[name](ctx)
        ended.append(name)

    async with place.running(app) as running:
        await app.emit("report")
        await running.settle()

    assert ended == [name]


@pytest.mark.parametrize("name", sorted(DELIVERY_CALLS))
async def test_a_handler_calls_each_method_of_its_delivery(place: Place, name: str) -> None:
    app = place.app()
    ended: list[str] = []

    @app.handler("report")
    async def report(ctx: JobContext) -> None:
        result = DELIVERY_CALLS[name](ctx.delivery)
        if isinstance(result, Awaitable):
            await result
        ended.append(name)

    async with place.running(app) as running:
        await app.emit("report")
        await running.settle()

    assert ended == [name]


async def test_a_context_has_the_values_of_its_message(place: Place) -> None:
    app = place.app()
    values: dict[str, Any] = {}
    delivery: dict[str, Any] = {}
    contexts: list[JobContext] = []

    @app.handler("report", retry=RETRY)
    async def report(ctx: JobContext) -> None:
        contexts.append(ctx)
        values.update({name: getattr(ctx, name) for name in JOB_VALUES})
        delivery.update({name: getattr(ctx.delivery, name) for name in VALUES})
        delivery["lease_remaining_s"] = ctx.delivery.lease_remaining_s

    async with place.running(app) as running:
        await app.emit("report", {"page": 1}, id="m1", key="k", headers={"tenant": "7"})
        await running.settle()

    (ctx,) = contexts
    assert values == JOB_VALUES
    assert delivery.pop("lease_remaining_s") > 0
    assert delivery == VALUES
    assert (ctx.stream, ctx.group) == (place.name, place.name)
    assert (ctx.delivery.stream, ctx.delivery.group) == (place.name, place.name)
    assert ctx.headers["tenant"] == "7"
    assert ctx.delivery.message.id == ctx.delivery.id
    assert ctx.envelope.id == "m1"


async def test_an_acknowledged_message_that_fails_is_neither_retried_nor_dead(place: Place) -> None:
    app = place.app()
    attempts: list[tuple[int, bool]] = []

    @app.handler("report", retry=RETRY)
    async def report(ctx: JobContext) -> None:
        await ctx.ack()
        attempts.append((ctx.attempt, ctx.delivery.acknowledged))
        raise KeyError

    async with place.running(app) as running:
        await app.emit("report")
        await running.settle()
        assert await running.dead_letters() == []

    assert attempts == [(1, True)]


async def test_a_context_is_refused_after_its_handler_ended(place: Place) -> None:
    app = place.app()
    contexts: list[JobContext] = []

    @app.handler("report")
    async def report(ctx: JobContext) -> None:
        contexts.append(ctx)

    async with place.running(app) as running:
        await app.emit("report")
        await running.settle()
        with pytest.raises(LeaseLostError):
            await contexts[0].delivery.extend()
        with pytest.raises(LeaseLostError):
            await contexts[0].ack()


async def test_progress_is_kept_and_checked(place: Place) -> None:
    app = place.app()
    refused: list[str] = []

    @app.handler("report")
    async def report(ctx: JobContext) -> None:
        await ctx.progress(0.2)
        await ctx.progress(0.4, "page 2 of 5")
        with pytest.raises(ConfigurationError) as caught:
            await ctx.progress(1.5)
        refused.append(str(caught.value))

    async with place.running(app) as running:
        await app.emit("report", id="m1")
        await running.settle()
        progress = await running.progress("m1")

    assert progress is not None
    assert (progress.fraction, progress.text) == (0.4, "page 2 of 5")
    assert refused == ["the progress must be a number from 0 to 1"]


async def test_a_context_emits_with_every_option(place: Place) -> None:
    app = place.app()
    seen: list[tuple[str, int, str | None, int, str | None]] = []
    emitted: list[Any] = []

    @app.handler("other", retry=RETRY)
    async def see(ctx: JobContext) -> None:
        seen.append((ctx.id, ctx.data.get("n", 0), ctx.key, ctx.max_attempts, ctx.headers.get("tenant")))

    @app.handler("report")
    async def report(ctx: JobContext) -> None:
        options: dict[str, Any] = {"id": "o1", "key": "k", "max_attempts": 2, "headers": {"tenant": "7"}}
        emitted.append(await ctx.emit("other", {"n": 1}, **options))
        emitted.append(await ctx.emit("other", {"n": 1}, **options))
        emitted.extend(await ctx.emit_many([NewMessage("other", {"n": 2}, id="o2", delay_s=0.05)]))
        for number in (3, 4):
            await ctx.emit("other", {"n": number}, delay_s=0.2, debounce="last")

    async with place.running(app) as running:
        await app.emit("report")
        await running.settle()

    assert [(one.id, one.stream, one.duplicate) for one in emitted] == [
        ("o1", place.name, False),
        ("o1", place.name, True),
        ("o2", place.name, False),
    ]
    assert (emitted[0].due_ms, emitted[2].entry_id) == (None, None)
    assert emitted[0].entry_id is not None
    assert emitted[2].due_ms is not None
    assert seen[:2] == [("o1", 1, "k", 2, "7"), ("o2", 2, None, 3, None)]
    assert [number for _, number, *_ in seen] == [1, 2, 4]


async def test_a_context_checks_what_it_emits(place: Place) -> None:
    app = place.app(max_payload_bytes=200)
    refused: list[str] = []

    @app.handler("report")
    async def report(ctx: JobContext) -> None:
        calls: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"text": "x" * 300}, {}),
            ({}, {"delay_s": -1}),
            ({}, {"delay_s": 1, "at": 1.0}),
            ({}, {"debounce": "last"}),
            ({}, {"max_attempts": 0}),
            ({}, {"replicas": -1}),
        ]
        for data, options in calls:
            with pytest.raises((ConfigurationError, PayloadError)) as caught:
                await ctx.emit("other", data, **options)
            refused.append(type(caught.value).__name__)

    async with place.running(app) as running:
        await app.emit("report")
        await running.settle()

    assert refused == ["PayloadError"] + 5 * ["ConfigurationError"]


@pytest.mark.parametrize("batch", [None, 2])
async def test_a_handler_causes_only_what_it_emits(place: Place, batch: int | None) -> None:
    app = place.app()
    causes: list[str | None] = []

    if batch is None:

        @app.handler("report")
        async def report(ctx: JobContext) -> None:
            await ctx.emit("other")

    else:

        @app.handler("report", batch=batch)
        async def reports(contexts: list[JobContext]) -> None:
            await contexts[0].emit("other")

    @app.handler("other")
    async def see(ctx: JobContext) -> None:
        causes.append(ctx.headers.get("conquiet-caused-by"))

    async with place.running(app) as running:
        await app.emit("report", id="m1")
        await running.settle()
        await app.emit("other")
        await running.settle()

    assert causes == [f'["{place.name}","m1"]', None]


async def test_headers_reach_the_handler_through_the_outbox(place: Place) -> None:
    app = place.app()
    tenants: list[str] = []

    @app.handler("report")
    async def report(session: AsyncSession, emit: Emit) -> None:
        await emit("other", headers={"tenant": "7"})
        await emit.many("other", [{}, {}], headers={"tenant": "8"})

    @app.handler("other")
    async def see(ctx: JobContext) -> None:
        tenants.append(ctx.headers["tenant"])

    async with place.running(app) as running:
        await app.emit("report")
        await running.settle()

    assert sorted(tenants) == ["7", "8", "8"]


async def test_a_job_that_raises_its_cancellation_is_cancelled_and_not_retried(place: Place) -> None:
    app = place.app()
    attempts: list[int] = []

    @app.handler("report", retry=RETRY)
    async def report(ctx: JobContext) -> None:
        attempts.append(ctx.attempt)
        raise JobCancelledError("no longer wanted", event=ctx.event, job_id=ctx.id)

    async with place.running(app) as running:
        with pytest.raises(JobCancelledError):
            await running.emit_and_wait("report")
        assert await running.dead_letters() == []

    assert attempts == [1]
