"""Which message is handled here: what its handler emits names it as its cause.

An engine begins with ``begin``; emitters and the outbox ask ``current``. The cause travels as a header of the message,
``conquiet-caused-by``, in the envelope, the outbox row and AMQP headers: the stream and the id, as a JSON list, and
nothing of the payload. What was emitted is noted beside it, so that the engine can record it with the job.

See docs/decisions/0071.
"""

import json
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

CAUSED_BY: Final = "conquiet-caused-by"
"""Name of the header."""

MOST_NOTED: Final = 20
"""Messages that are noted of one handler. A handler that emits more has the first ones noted."""

_LONGEST: Final = 900


class MessageRef(NamedTuple):
    """A message: where it is, and its id. For one of an outbox, ``place`` is its target."""

    place: str
    id: str


class Handling:
    """A message whose handler runs.

    Args:
        stream: Its stream.
        message_id: Its id.
    """

    __slots__ = ("caused", "id", "stream")

    def __init__(self, stream: str, message_id: str) -> None:
        self.stream = stream
        self.id = message_id
        self.caused: list[MessageRef] | None = None

    def note(self, place: str, message_id: str) -> None:
        """Note that the handler has emitted a message."""
        if self.caused is None:
            self.caused = []
        if len(self.caused) < MOST_NOTED:
            self.caused.append(MessageRef(place, message_id))

    def headers(self, given: Mapping[str, str] | None) -> dict[str, str]:
        """Return the headers of a message that the handler emits: the caller's and the cause, unless it has one."""
        cause = json.dumps([self.stream, self.id], separators=(",", ":"))
        if len(cause) > _LONGEST:  # a header has a limit, and a stream's name none
            return dict(given or {})
        return {CAUSED_BY: cause, **(given or {})}


_current: ContextVar[Handling | None] = ContextVar("conquiet_handling", default=None)

current = _current.get
"""Return the message that is handled in this context, or None."""


def begin(stream: str, message_id: str) -> Handling:
    """Note which message is handled in this context from now on. Engines run each handler in a context of its own."""
    handling = Handling(stream, message_id)
    _current.set(handling)
    return handling


def carried(headers: Mapping[str, str] | None, place: str, message_id: str) -> Mapping[str, str] | None:
    """Return the headers of a message that is emitted now, and note it if a handler emits it."""
    handling = _current.get()
    if handling is None:
        return headers
    handling.note(place, message_id)
    return handling.headers(headers)


def read_cause(headers: Mapping[str, Any] | None) -> MessageRef | None:
    """Return the cause that the headers of a message name; None if there is none that can be read."""
    raw = None if headers is None else headers.get(CAUSED_BY)
    if not isinstance(raw, str) or len(raw) > _LONGEST:
        return None
    try:
        found = json.loads(raw)
    except ValueError:
        return None
    if not isinstance(found, list) or len(found) != 2 or not all(isinstance(one, str) for one in found):  # noqa: PLR2004
        return None
    return MessageRef(*found)
