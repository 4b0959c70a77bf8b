"""A batch is one span that is linked to the sender of each of its messages; its failures are named."""

import asyncio
from typing import Any

import pika
import redis
from tests.integration.otel.conftest import Traces
from tests.integration.otel.test_traces import attribute

from conquiet.otel import conventions as names
from conquiet.processor import NewMessage, Processor, ProcessorSettings, RetryPolicy
from conquiet.rabbit import RabbitConsumer
from conquiet.rabbit.publisher import Publisher
from conquiet.runtime import Consumer
from conquiet.testing import wait_until_async

CANARY = "jane@example.org"
SETTINGS = ProcessorSettings(retry=RetryPolicy.fixed(0.01, max_attempts=3))


def linked(span: Any) -> set[int]:
    """Return the ids of the spans that a span links to."""
    return {link.context.span_id for link in span.links}


async def test_a_batch_of_a_processor_links_to_the_sender_of_each_message(
    traces: Traces, client: redis.Redis, key_prefix: str
) -> None:
    stream = f"{key_prefix}orders"
    processor = Processor(client, [stream], settings=SETTINGS)
    seen: list[int] = []

    @processor.handler("paid", batch=10, within_s=0.2)
    async def handle(contexts: list[Any]) -> None:
        seen.append(len(contexts))

    emitted = [await processor.emit("paid", {"mail": CANARY}) for _ in range(3)]
    async with processor:
        await wait_until_async(lambda: sum(seen) == 3)
        await wait_until_async(lambda: len(traces.named(f"process {stream}")) == len(seen))

    batches, sent = traces.named(f"process {stream}"), traces.named(f"send {stream}")
    assert set().union(*(linked(batch) for batch in batches)) == {span.context.span_id for span in sent}
    assert sorted(attribute(batch, names.BATCH_SIZE) for batch in batches) == sorted(seen)
    named = {(link.attributes or {})[names.MESSAGE_ID] for batch in batches for link in batch.links}
    assert named == {one.id for one in emitted}
    assert {attribute(batch, names.EVENT) for batch in batches} == {"paid"}
    assert all(batch.parent is None for batch in batches)
    assert CANARY not in "".join(span.to_json() for span in traces.spans)


async def test_a_message_that_failed_in_a_batch_links_to_its_first_attempt(
    traces: Traces, client: redis.Redis, key_prefix: str
) -> None:
    stream = f"{key_prefix}orders"
    processor = Processor(client, [stream], settings=SETTINGS)

    @processor.handler("paid", batch=10, within_s=0.05)
    async def handle(contexts: list[Any]) -> None:
        if any(context.data.get("bad") and context.attempt == 1 for context in contexts):
            raise KeyError(CANARY)

    await processor.emit_many([NewMessage("paid"), NewMessage("paid", {"bad": True})])
    async with processor:
        await wait_until_async(lambda: len(traces.named(f"process {stream}")) >= 2)

    failed = next(batch for batch in traces.named(f"process {stream}") if attribute(batch, names.ERROR_TYPE))
    later = traces.named(f"process {stream}")[-1]
    assert attribute(failed, names.ERROR_TYPE) == "KeyError"
    assert attribute(failed, "conquiet.batch.failed") == 1
    assert failed.context.span_id in linked(later)
    assert attribute(later, "conquiet.batch.failed") == 0


async def test_a_batch_of_the_runtime_is_one_span(traces: Traces, client: redis.Redis, key_prefix: str) -> None:
    stream = f"{key_prefix}orders"
    for _ in range(4):
        client.xadd(stream, {"data": "{}"})

    async def handle(messages: list[Any], contexts: list[Any]) -> None:
        raise ValueError(CANARY)

    async with Consumer(streams=[stream], redis=client, handler=handle, batch=4):
        await wait_until_async(lambda: bool(traces.named(f"process {stream}")))

    handled = traces.named(f"process {stream}")[0]
    assert attribute(handled, names.BATCH_SIZE) == attribute(handled, "conquiet.batch.failed")
    assert attribute(handled, names.GROUP) == "processor"
    assert attribute(handled, names.ERROR_TYPE) == "ValueError"


async def test_a_batch_of_rabbitmq_links_to_the_sender_of_each_message(
    traces: Traces, amqp_url: str, key_prefix: str
) -> None:
    queue = f"{key_prefix}letters"
    with pika.BlockingConnection(pika.URLParameters(amqp_url)) as connection:
        connection.channel().queue_declare(queue, durable=True)
    done = asyncio.Event()
    seen = 0

    async def syncer(messages: list[Any]) -> bool:
        nonlocal seen
        seen += len(messages)
        if seen == 3:
            done.set()
        return True

    async with Publisher(amqp_url) as publisher:
        for _ in range(3):
            await publisher.publish(queue, {"mail": CANARY})
    async with RabbitConsumer(amqp_url, queue, syncer, batch=3):
        await asyncio.wait_for(done.wait(), 60)

    batches, sent = traces.named(f"process {queue}"), traces.named(f"send {queue}")
    assert set().union(*(linked(batch) for batch in batches)) == {span.context.span_id for span in sent}
    assert sum(attribute(batch, names.BATCH_SIZE) for batch in batches) == 3
    assert {attribute(batch, names.SYSTEM) for batch in batches} == {"rabbitmq"}
    assert CANARY not in "".join(span.to_json() for span in traces.spans)
