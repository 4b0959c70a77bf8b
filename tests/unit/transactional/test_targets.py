"""Targets of a relay, without a server."""

import asyncio

import pytest

from conquiet.errors import RabbitConnectionError
from conquiet.transactional import (
    OutboxMessage,
    PublishOutcome,
)
from conquiet.transactional.rabbit_target import ToRabbit


async def test_a_message_that_cannot_be_sent_is_refused() -> None:
    target = ToRabbit("amqp://127.0.0.1:1", "q")
    answers: dict[int, object] = {1: None, 2: ValueError("4111"), 3: RabbitConnectionError("gone")}

    async def send(message: OutboxMessage) -> object:
        answer = answers[message.seq]
        if isinstance(answer, Exception):
            raise answer
        return "id"

    target._send = send  # type: ignore[assignment, method-assign]
    messages = [OutboxMessage(seq, str(seq), None, b"{}") for seq in answers]

    results = await target._publish(messages)

    assert results == [
        (PublishOutcome.PUBLISHED, ""),
        (PublishOutcome.REFUSED, "ValueError"),
        (PublishOutcome.DEFERRED, ""),
    ]
    with pytest.raises(RabbitConnectionError):
        await target._publish(messages[2:])
    await asyncio.to_thread(target.close)
