"""Confirmations are matched to their messages, without a broker."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from pika import spec

from conquiet.errors import PublishError, ReturnedMessageError
from conquiet.rabbit import Outgoing
from conquiet.rabbit.confirms import ConfirmChannel
from conquiet.rabbit.connection import Loss, LossKind
from conquiet.rabbit.publisher import encode


def a_channel() -> ConfirmChannel:
    lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    link: Any = SimpleNamespace(lost=lost, frame_max=0, publish=lambda *_, **__: True)
    return ConfirmChannel(link)


def fates(sent: list["asyncio.Future[str]"]) -> list[str]:
    return [
        "waits" if not one.done() else type(one.exception()).__name__ if one.exception() else "sent" for one in sent
    ]


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ([spec.Basic.Ack(2, multiple=False)], ["waits", "sent", "waits", "waits"]),
        ([spec.Basic.Ack(3, multiple=True)], ["sent", "sent", "sent", "waits"]),
        (
            [spec.Basic.Ack(2), spec.Basic.Ack(1), spec.Basic.Nack(3, multiple=True)],
            ["sent", "sent", "refused", "waits"],
        ),
        ([spec.Basic.Nack(2), spec.Basic.Ack(4, multiple=True)], ["sent", "refused", "sent", "sent"]),
        ([spec.Basic.Ack(1, multiple=True), spec.Basic.Ack(4, multiple=True)], ["sent"] * 4),
        ([spec.Basic.Ack(9, multiple=True), spec.Basic.Ack(1)], ["sent"] * 4),
    ],
)
async def test_each_message_has_the_answer_to_its_own_number(methods: list[Any], expected: list[str]) -> None:
    channel = a_channel()
    sent = [channel.publish(encode(Outgoing("q", b""))) for _ in range(4)]

    for method in methods:
        channel._on_confirm(SimpleNamespace(method=method))

    assert fates(sent) == [name.replace("refused", PublishError.__name__) for name in expected]
    assert len(channel._waiting) == expected.count("waits")


async def test_unconfirmed_messages_fail_when_the_link_is_lost() -> None:
    """Otherwise its sender would wait for a reply that cannot arrive any more."""
    channel = a_channel()
    sent = [channel.publish(encode(Outgoing("q", b""))) for _ in range(3)]
    channel._on_confirm(SimpleNamespace(method=spec.Basic.Ack(2)))

    channel.link.lost.set_result(Loss(LossKind.CONNECTION, "ConnectionResetError", None, None))
    await asyncio.sleep(0)  # its callbacks run

    assert fates(sent) == [PublishError.__name__, "sent", PublishError.__name__]
    assert "ConnectionResetError" in str(sent[0].exception())
    assert len(channel._waiting) == 0


async def test_of_messages_that_share_an_id_each_return_takes_one() -> None:
    channel = a_channel()
    twins = [channel.publish(encode(Outgoing("q", b"", message_id="m"))) for _ in range(3)]
    for _ in range(2):
        channel._on_return(None, SimpleNamespace(exchange="", routing_key="q"), SimpleNamespace(message_id="m"), b"")

    channel._on_confirm(SimpleNamespace(method=spec.Basic.Ack(3, multiple=True)))

    assert fates(twins) == [ReturnedMessageError.__name__, ReturnedMessageError.__name__, "sent"]
    assert not channel._returned
