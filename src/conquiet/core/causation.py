"""Which message is handled here: what its handler emits names it as its cause.

An engine begins with ``enter``; emitters and the outbox use ``carried``. A package whose engine notes its
message elsewhere registers where (``add_source``). The cause travels as a header of the message,
``conquiet-caused-by``, in the envelope, the outbox row and AMQP headers: the stream and the id, as a JSON list, and
nothing of the payload. What was emitted is noted beside it, so that the engine can record it with the job.

See docs/decisions/0071.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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


Caused = list[MessageRef] | None
"""What a handler has emitted; None if nothing."""


class Handling:
    """A message whose handler runs. The context of a handler is one.

    Args:
        stream: Its stream.
        message_id: Its id.

    Attributes:
        caused: What the handler has emitted, the first few; None before the first.
        span_context: For the tracing; see ``otel.dropped``.
    """

    __slots__ = ("caused", "id", "span_context", "stream")

    def __init__(self, stream: str, message_id: str) -> None:
        self.stream = stream
        self.id = message_id
        self.caused: Caused = None
        self.span_context: Any = None

    @property
    def headers(self) -> Mapping[str, str]:
        """What travelled with the message."""
        return {}


_current: ContextVar[Handling | tuple[str, str] | None] = ContextVar("conquiet_handling", default=None)
_sources: list[Callable[[], tuple[str, str] | None]] = []

enter = _current.set
"""Note which message is handled in this context from now on; None if there are several.

Engines run each handler in a context of its own. One that records nothing gives the place and the id alone: no object
is made before the handler emits something."""


def add_source(find: Callable[[], tuple[str, str] | None]) -> None:
    """Register a function that returns place and id of the message that its engine handles in this context, or None."""
    _sources.append(find)


def current() -> Handling | None:
    """Return the message that is handled in this context, of an engine that records it; else None."""
    found = _current.get()
    return found if isinstance(found, Handling) else None


@contextmanager
def attributed_to(handling: Handling) -> Iterator[None]:
    """Name this message as the cause of what is emitted here: it may be one of several that are handled together."""
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
    return found if found is None or isinstance(found, Handling) else Handling(*found)


def carried(headers: Mapping[str, str] | None, place: str, *message_ids: str) -> Mapping[str, str] | None:
    """Return the headers of messages that are emitted now, and note them if a handler emits them.

    Args:
        headers: The caller's; a cause among them is kept.
        place: The stream of the messages, or their target in an outbox.
        message_ids: Their ids.
    """
    handling = _cause()
    if handling is None:
        return headers
    noted = handling.caused = handling.caused or []
    noted += [MessageRef(place, message_id) for message_id in message_ids[: MOST_NOTED - len(noted)]]
    cause = json.dumps([handling.stream, handling.id], separators=(",", ":"))
    if len(cause) > _LONGEST:  # a header has a limit, and a stream's name none
        return dict(headers or {})
    return {CAUSED_BY: cause, **(headers or {})}


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
