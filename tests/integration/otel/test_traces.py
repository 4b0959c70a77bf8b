"""One message is one connected trace, through the transaction, the relay and both brokers."""

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
import redis
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags
from sqlalchemy import Engine, create_engine
from tests.integration.otel.conftest import Traces

from conquiet.db import DbSession
from conquiet.otel import conventions as names
from conquiet.otel import instrument, uninstrument
from conquiet.processor import JobContext, Processor, ProcessorSettings, RetryPolicy
from conquiet.rabbit import RabbitConsumer
from conquiet.rabbit.publisher import Publisher
from conquiet.runtime import Consumer, MessageContext, RuntimeMessage
from conquiet.runtime.settings import RuntimeSettings
from conquiet.testing import wait_until_async
from conquiet.transactional import Outbox, OutboxRelay, ToProcessor, create_tables, for_processor

CANARY = "jane@example.org"
SETTINGS = ProcessorSettings(retry=RetryPolicy.fixed(0.01, max_attempts=3))
QUICK = RuntimeSettings(claim_idle_ms=300)

KILLED = """
import asyncio, os, signal, sys
import redis
from sqlalchemy import create_engine
from conquiet.otel import instrument
from conquiet.processor import Processor
from conquiet.transactional import for_processor

instrument()
processor = Processor(redis.Redis.from_url(sys.argv[1]), [sys.argv[2]], consumer_id="killed")


async def die_after_commit(ctx, call_next):
    await call_next(ctx)
    os.kill(os.getpid(), signal.SIGKILL)


processor.add_middleware(die_after_commit)
processor.handler("paid")(for_processor(lambda ctx, session: None, engine=create_engine(sys.argv[3])))
asyncio.run(processor.run())
"""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    create_tables(made)
    yield made
    made.dispose()


@pytest.fixture
def queue(amqp_url: str) -> str:
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        connection.channel().queue_declare("letters", durable=True)
    return "letters"


def attribute(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(name)


def request(traces: Traces, engine: Engine, client: redis.Redis, stream: str) -> None:
    """Do what a web request does: write a row in a transaction. Then the relay publishes it."""
    with traces.tracer.start_as_current_span("POST /orders"), DbSession(engine) as session:
        Outbox().add(session, stream, {"mail": CANARY}, event="paid")
    with ToProcessor(client, stream) as target, OutboxRelay(engine, {stream: target}) as relay:
        assert relay.drain().published == 1


async def test_a_request_is_one_trace_through_outbox_redis_and_rabbitmq(
    traces: Traces, engine: Engine, client: redis.Redis, amqp_url: str, queue: str, key_prefix: str
) -> None:
    stream = f"{key_prefix}orders"
    done = asyncio.Event()
    request(traces, engine, client, stream)
    processor = Processor(client, [stream], settings=SETTINGS)

    async with Publisher(amqp_url) as publisher:
        paid: Any = for_processor(lambda ctx, session: None, engine=engine)

        @processor.handler("paid")
        async def handle(ctx: JobContext) -> None:
            await asyncio.to_thread(paid, ctx)
            await publisher.publish(queue, {"mail": CANARY})

        async def syncer(message: Any) -> bool:
            done.set()
            return True

        async with processor, RabbitConsumer(amqp_url, queue, syncer):
            await asyncio.wait_for(done.wait(), 60)
    await wait_until_async(lambda: bool(traces.named(f"process {queue}")))

    (last,) = traces.named(f"process {queue}")
    assert traces.chain(last) == [
        f"process {queue}", f"send {queue}", f"process {stream}", f"send {stream}", "POST /orders",
    ]  # fmt: skip
    assert len({span.context.trace_id for span in traces.spans}) == 1
    (handled,), (sent,) = traces.named(f"process {stream}"), traces.named(f"send {stream}")
    assert (handled.kind, sent.kind, last.kind) == (SpanKind.CONSUMER, SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert attribute(handled, names.SYSTEM) == "redis"
    assert attribute(last, names.SYSTEM) == "rabbitmq"
    assert attribute(handled, "conquiet.inbox.outcome") == "first"
    assert attribute(handled, names.ATTEMPT) == 1
    assert CANARY not in "".join(span.to_json() for span in traces.spans)


async def test_a_worker_killed_between_commit_and_acknowledgement_stays_in_the_trace(
    traces: Traces, engine: Engine, client: redis.Redis, redis_url: str, key_prefix: str
) -> None:
    stream = f"{key_prefix}orders"
    request(traces, engine, client, stream)
    arguments = [sys.executable, "-c", KILLED, redis_url, stream, str(engine.url)]
    killed = await asyncio.to_thread(subprocess.run, arguments, check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL

    processor = Processor(client, [stream], settings=SETTINGS, runtime=QUICK)
    processor.handler("paid")(for_processor(lambda ctx, session: None, engine=engine))
    async with processor:
        await wait_until_async(lambda: bool(traces.named(f"process {stream}")))

    (again,) = traces.named(f"process {stream}")
    assert attribute(again, "conquiet.inbox.outcome") == "duplicate"
    assert traces.chain(again)[-1] == "POST /orders"


async def test_a_retry_links_to_the_first_attempt_and_shows_its_number(
    traces: Traces, client: redis.Redis, key_prefix: str
) -> None:
    stream = f"{key_prefix}orders"
    processor = Processor(client, [stream], settings=SETTINGS)

    @processor.handler("paid")
    async def handle(ctx: JobContext) -> None:
        if ctx.attempt < 3:
            raise KeyError(CANARY)

    async with processor:
        await processor.emit("paid", {"mail": CANARY}, headers={"tenant": "a"})
        await wait_until_async(lambda: len(traces.named(f"process {stream}")) == 3)

    first, second, third = traces.named(f"process {stream}")
    assert [attribute(span, names.ATTEMPT) for span in (first, second, third)] == [1, 2, 3]
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert [link.context.span_id for link in third.links] == [first.context.span_id]
    assert len({span.context.trace_id for span in (first, second, third)}) == 1
    assert attribute(first, names.ERROR_TYPE) == "KeyError"
    settled = traces.named(f"retry {stream}")
    assert {span.kind for span in settled} == {SpanKind.CLIENT}
    assert CANARY not in "".join(span.to_json() for span in traces.spans)


async def test_a_held_foreign_entry_has_a_span_of_its_settlement(
    traces: Traces, client: redis.Redis, key_prefix: str
) -> None:
    instrument(tracer_provider=traces.provider)
    stream = f"{key_prefix}orders"
    processor = Processor(client, [stream], settings=SETTINGS)
    processor.handler("paid")(lambda ctx: None)
    client.xadd(stream, {"data": '{"temperature":21}'})

    async with processor:
        await processor.emit("paid", {})
        await wait_until_async(lambda: bool(traces.named(f"dead_letter {stream}")))

    (settled,) = traces.named(f"dead_letter {stream}")
    assert settled.kind is SpanKind.CLIENT


@pytest.mark.parametrize("is_installed_first", [True, False], ids=["before the workers", "after the workers"])
async def test_a_dropped_trace_stays_dropped_in_what_a_handler_emits(
    traces: Traces,
    client: redis.Redis,
    key_prefix: str,
    is_installed_first: bool,  # noqa: FBT001
) -> None:
    """Nothing is recorded, and the decision is passed on: a retry and an emitted message are in the same trace."""
    uninstrument()
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    sender = NonRecordingSpan(SpanContext(int(trace_id, 16), 1, is_remote=False, trace_flags=TraceFlags(0)))
    processor = Processor(client, [f"{key_prefix}orders"], settings=SETTINGS)
    seen: list[str] = []

    @processor.handler("paid")
    async def pay(ctx: JobContext) -> None:
        await ctx.emit("shipped")
        if ctx.attempt == 1:
            raise KeyError(CANARY)

    @processor.handler("shipped")
    async def ship(ctx: JobContext) -> None:
        seen.append(ctx.headers["traceparent"])

    if is_installed_first:
        instrument(tracer_provider=traces.provider)
    async with processor:
        await wait_until_async(lambda: processor.health().ready)
        if not is_installed_first:
            instrument(tracer_provider=traces.provider)
        with trace.use_span(sender):
            await processor.emit("paid")
        await wait_until_async(lambda: len(seen) == 2)

    assert [re.fullmatch(rf"00-{trace_id}-[0-9a-f]{{16}}-00", each) is not None for each in seen] == [True, True]
    assert len(set(seen)) == 2, "each run has a span of its own"
    assert {span.name.split()[0] for span in traces.spans} == {"retry"}, "the handlers have no spans"


async def test_context_link_begins_a_trace_of_its_own(traces: Traces, client: redis.Redis, key_prefix: str) -> None:
    instrument(tracer_provider=traces.provider, context="link")
    stream = f"{key_prefix}orders"
    processor = Processor(client, [stream], settings=SETTINGS)
    seen: list[str] = []

    @processor.handler("paid")
    def handle(ctx: JobContext) -> None:
        seen.append(ctx.headers["tenant"])

    async with processor:
        await processor.emit("paid", headers={"tenant": "a"})
        await wait_until_async(lambda: bool(traces.named(f"process {stream}")))

    (sent,), (handled,) = traces.named(f"send {stream}"), traces.named(f"process {stream}")
    assert handled.parent is None
    assert [link.context.span_id for link in handled.links] == [sent.context.span_id]
    assert seen == ["a"]


async def test_the_runtime_has_a_span_for_each_message(traces: Traces, client: redis.Redis, key_prefix: str) -> None:
    stream = f"{key_prefix}orders"
    client.xadd(stream, {"data": "{}"})

    async def handle(message: RuntimeMessage, ctx: MessageContext) -> None:
        raise ValueError(CANARY)

    async with Consumer(streams=[stream], redis=client, handler=handle):
        await wait_until_async(lambda: bool(traces.named(f"process {stream}")))

    (handled,) = traces.named(f"process {stream}")
    assert attribute(handled, names.GROUP) == "processor"
    assert attribute(handled, "conquiet.settlement") == "keep_pending"
    assert attribute(handled, names.ERROR_TYPE) == "ValueError"


@pytest.mark.parametrize("suspends", [False, True])
async def test_the_span_of_the_runtime_is_current_in_its_handler_alone(
    traces: Traces,
    client: redis.Redis,
    key_prefix: str,
    caplog: pytest.LogCaptureFixture,
    suspends: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    stream = f"{key_prefix}orders"
    for _ in range(20):
        client.xadd(stream, {"data": "{}"})
    inside: list[int] = []

    async def handle(message: RuntimeMessage, ctx: MessageContext) -> None:
        before = trace.get_current_span().get_span_context().span_id
        if suspends:
            await asyncio.sleep(0.001)
        assert trace.get_current_span().get_span_context().span_id == before
        inside.append(before)

    async with Consumer(streams=[stream], redis=client, handler=handle, concurrency=4):
        await wait_until_async(lambda: len(traces.named(f"process {stream}")) == 20)

    assert sorted(inside) == sorted(span.context.span_id for span in traces.named(f"process {stream}"))
    assert all(span.parent is None for span in traces.named(f"process {stream}"))
    assert "detach" not in caplog.text, "OpenTelemetry logs a context that was left in another one"
