"""Take messages from a queue to read them, and then release or delete them."""

import asyncio
from typing import Final

from conquiet.errors import RabbitError
from conquiet.rabbit.connection import Fetched, Link
from conquiet.rabbit.death_headers import delivery_count
from conquiet.rabbit.queue_probe import has_delivery_limit
from conquiet.rabbitmq_api import nack_is_uncounted

_RELEASE_CHUNK: Final = 16
_RELEASE_WAIT_S: Final = 5.0
_RELEASE_POLL_S: Final = 0.005


class TakenMessages:
    """Messages taken from a queue. Unacknowledged ones are released only at the end, or they would be taken again."""

    def __init__(self, link: Link, queue: str, depth: int) -> None:
        self.link = link
        self.depth = depth
        self.position = 0
        self.acknowledged = 0
        self._queue = queue
        self._tags: list[int] = []

    async def next(self) -> Fetched | None:
        """Take the next message; None after the number of messages that were there at the start."""
        if self.position == self.depth or (message := await self.link.fetch(self._queue)) is None:
            return None
        self.position += 1
        self._tags.append(message.tag)
        return message

    def acknowledge(self, message: Fetched) -> bool:
        """Delete a taken message from the queue. Return False if the connection is lost."""
        if not self.link.ack(singles=(message.tag,)):
            return False
        self._tags.remove(message.tag)
        self.acknowledged += 1
        return True

    async def may_delete(self, message: Fetched) -> bool:
        """Return whether a release may delete the message: its count may exceed the limit of a newer quorum queue."""
        return (
            nack_is_uncounted(self.link.broker_release)
            and bool(delivery_count(message.headers))
            and await has_delivery_limit(self.link, self._queue)
        )

    async def release(self) -> None:
        """Release all unacknowledged messages. Closing the link would do that too, but newer brokers count it.

        A quorum queue has one consumer for each message taken with basic.get. If the end of a channel releases the
        messages of more than 32 consumers, the members of the queue may disagree about their order (seen on RabbitMQ
        3.10). If another member becomes the leader later, it deletes other messages than the acknowledged ones. So
        only a few releases may be unfinished when the channel is closed: the broker does not complete them before its
        reply to the close.
        """
        is_waiting = len(self._tags) > _RELEASE_CHUNK
        for start in range(0, len(self._tags), _RELEASE_CHUNK):
            tags = self._tags[start : start + _RELEASE_CHUNK]
            try:
                ready = await self.link.depth(self._queue) if is_waiting else 0
                for tag in tags:
                    self.link.nack_requeue(tag)
                # If they do not appear in the queue, another consumer takes them: do not wait for the next ones.
                is_waiting = is_waiting and await self._is_ready(ready + len(tags))
            except RabbitError:
                return  # the link is lost: the broker returns the others

    async def _is_ready(self, number: int) -> bool:
        """Wait until the queue has this number of ready messages. Return False on a timeout."""
        now = asyncio.get_running_loop().time
        deadline = now() + _RELEASE_WAIT_S
        while await self.link.depth(self._queue) < number:
            if now() > deadline:
                return False
            await asyncio.sleep(_RELEASE_POLL_S)
        return True
