"""Connect to any node of a RabbitMQ cluster: try each address once, in turn."""

from conquiet.errors import RabbitConnectionError
from conquiet.rabbit.address import Address
from conquiet.rabbit.connection import Link


async def open_on_any_node(address: Address, *, first: int = 0) -> Link:
    """Connect to the first node that accepts, beginning with number ``first``.

    Raises:
        RabbitConnectionError: No node accepts; the error of the last one.
    """
    last = first + len(address.urls) - 1
    for attempt in range(first, last):
        try:
            return await Link.open(address, attempt=attempt)
        except RabbitConnectionError:
            continue  # this node is unavailable: try the next one
    return await Link.open(address, attempt=last)
