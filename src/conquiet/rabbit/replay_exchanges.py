"""Create temporary exchanges, so that a replay can publish to one queue with any routing key.

A queue without ``x-dead-letter-routing-key`` dead-letters a message with the key that the message has. If a replay used
the default exchange, that key would be the queue's name, and a dead-letter exchange that routes by the original key
would discard a message that fails again. So each target queue gets a fanout exchange with one binding, to this queue:
it accepts any key and ignores it.
"""

from typing import Final
from uuid import uuid4

from conquiet.core.log import FactLogger
from conquiet.errors import RabbitConnectionError
from conquiet.rabbit.address import Address
from conquiet.rabbit.connection import NOT_FOUND, REFUSED, Link

logger = FactLogger(__name__)

PREFIX: Final = "conquiet.replay."


class TemporaryExchanges:
    """Creates the exchanges of one replay when they are needed. :meth:`close` deletes them."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._link: Link | None = None
        self._made: list[str] = []
        self._ways: dict[str, str | None] = {}
        self._may_make = True

    async def to(self, queue: str) -> str | None:
        """Return the exchange that leads to the queue; None without the permission, or if there is no such queue."""
        if queue not in self._ways:
            self._ways[queue] = await self._make(queue) if self._may_make else None
        return self._ways[queue]

    async def close(self) -> None:
        """Delete the exchanges. On a failure log the remaining ones: they get no messages, and end with the broker."""
        try:
            if self._made:
                link = await self._open()
                while self._made:
                    await _delete(link, self._made[-1])
                    self._made.pop()
        except RabbitConnectionError as error:
            logger.warning(
                "exchanges of a replay were left behind; delete them",
                exchanges=self._made,
                reason=error.reason,
            )
        finally:
            if self._link is not None:
                await self._link.close()

    async def _make(self, queue: str) -> str | None:
        link, name = await self._open(), PREFIX + uuid4().hex
        self._made.append(name)  # before the declaration: the exchange may exist even if no reply arrives
        try:
            await _declare(link, name)
        except RabbitConnectionError:
            if link.refusal != REFUSED:
                raise
            self._made.pop()
            self._may_make = False
            return None
        try:
            await link.request(lambda channel, done: channel.queue_bind(queue, name, callback=done))
        except RabbitConnectionError:
            if link.refusal not in (REFUSED, NOT_FOUND):
                raise
            return None
        return name

    async def _open(self) -> Link:
        if self._link is not None and not self._link.is_open:
            over, self._link = self._link, None
            await over.close_soon()
        if self._link is None:
            self._link = await Link.open(self._address)
        return self._link


async def _declare(link: Link, exchange: str) -> None:
    # Not durable, and deleted with its last binding: a killed process leaves as little as possible.
    await link.request(
        lambda channel, done: channel.exchange_declare(
            exchange, "fanout", durable=False, auto_delete=True, callback=done
        )
    )


async def _delete(link: Link, exchange: str) -> None:
    await link.request(lambda channel, done: channel.exchange_delete(exchange, callback=done))
