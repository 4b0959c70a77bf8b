"""Track the message that is being handled, so that messages emitted by its handler carry it as their cause.

An engine calls ``enter`` before the handler; emitters and the outbox call ``carried``. An engine that keeps its
current message elsewhere registers a function that returns it (``add_source``). The cause is a message header,
``conquiet-caused-by``, in the envelope, the outbox row and AMQP headers: stream and id as a JSON list, without the
payload. Emitted messages are also recorded on the ``Handling``, so that the engine can store them with the job.

See docs/decisions/0018.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

import msgspec

CAUSED_BY: Final = "conquiet-caused-by"
"""Name of the header."""

MOST_NOTED: Final = 20
"""Maximum number of emitted messages recorded per handler: the first ones."""

_LONGEST: Final = 900


class MessageRef(NamedTuple):
    """Stream and id of a message. For an outbox message, ``place`` is its target."""

    place: str
    id: str


_read_ref = msgspec.json.Decoder(MessageRef).decode  # a list of two texts

Caused = list[MessageRef] | None
"""The messages that a handler has emitted. None if there are none."""


class Handling(msgspec.Struct, eq=False):
    """A message that is being handled. Base class of the context of a handler.

    A msgspec struct, because one is built for every message, at half of the cost of a class.

    Attributes:
        stream: Its stream.
        id: Its id.
        caused: The first messages that the handler has emitted. None before the first.
        span_context: For tracing; see ``otel.dropped``.
    """

    stream: str
    id: str
    caused: Caused
    span_context: Any

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the message."""
        return {}


_current: ContextVar[Handling | tuple[str, str] | None] = ContextVar("conquiet_handling", default=None)
_sources: list[Callable[[], tuple[str, str] | None]] = []

enter = _current.set
"""Set the message that is handled in the current context; None if there are several.

Engines run each handler in a separate context. An engine without job records passes only (place, id), so that no object
is created unless the handler emits something."""


def add_source(find: Callable[[], tuple[str, str] | None]) -> None:
    """Register a function that returns place and id of the message handled in the current context, or None."""
    _sources.append(find)


def current() -> Handling | None:
    """Return the ``Handling`` of the current context. None if the engine passed only (place, id) or nothing."""
    found = _current.get()
    return found if isinstance(found, Handling) else None


@contextmanager
def attributed_to(handling: Handling) -> Iterator[None]:
    """Make this message the cause of messages emitted in the block. It may be a member of a batch."""
    known = current()
    if known is not None and known.id == handling.id and known.stream == handling.stream:
        yield
        return
    token = _current.set(handling)
    try:
        yield
    finally:
        _current.reset(token)


def _cause() -> Handling | None:
    found = _current.get()
    if found is None:
        found = next((one for source in _sources if (one := source()) is not None), None)
    return found if found is None or isinstance(found, Handling) else Handling(*found, None, None)


def carried(headers: Mapping[str, str] | None, place: str, *message_ids: str) -> Mapping[str, str] | None:
    """Return the headers for messages that are emitted now. Record the messages if a handler emits them.

    Args:
        headers: The caller's headers. A cause among them is kept.
        place: The stream of the messages, or their target in an outbox.
        message_ids: Their ids.
    """
    handling = _cause()
    if handling is None:
        return headers
    noted = handling.caused = handling.caused or []
    noted += [MessageRef(place, message_id) for message_id in message_ids[: MOST_NOTED - len(noted)]]
    cause = json.dumps([handling.stream, handling.id], separators=(",", ":"))
    if len(cause) > _LONGEST:  # headers are limited, stream names are not
        return dict(headers or {})
    return {CAUSED_BY: cause, **(headers or {})}


def read_cause(headers: Mapping[str, Any] | None) -> MessageRef | None:
    """Return the cause in the headers of a message. None if it is missing or invalid."""
    raw = None if headers is None else headers.get(CAUSED_BY)
    if not isinstance(raw, str) or len(raw) > _LONGEST:
        return None
    try:
        return _read_ref(raw)
    except (msgspec.DecodeError, UnicodeError):
        return None
