"""One delivery: what the broker gave us, and the session it has to be settled on."""

from typing import TYPE_CHECKING, Any

from conquiet.rabbit.intake import delivery_count
from conquiet.rabbit.settle import Facts

if TYPE_CHECKING:
    from conquiet.rabbit.session import Session


class Delivery:
    """A message on its way. ``repr`` shows neither headers nor body.

    A plain class with slots and no ``__eq__``: one is made for each message, and sets of them go by identity.
    """

    __slots__ = ("body", "headers", "redelivered", "session", "tag")

    def __init__(self, session: "Session", tag: int, redelivered: bool, headers: Any, body: bytes) -> None:  # noqa: FBT001
        self.session = session
        self.tag = tag
        self.redelivered = redelivered
        self.headers = headers
        self.body = body

    @property
    def facts(self) -> Facts:
        """What the settle policy needs to know."""
        return Facts(self.redelivered, delivery_count(self.headers))

    def __repr__(self) -> str:
        return f"Delivery(tag={self.tag}, redelivered={self.redelivered})"
