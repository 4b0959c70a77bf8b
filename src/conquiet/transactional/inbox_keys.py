"""Identify messages: two messages with one key are the same message. Pure.

A key has three parts, because an effect belongs to the source of a message and to the group that handles
it: with two groups on one stream, a message has one effect in each.

    (source, group, id)      source: stream or queue; group: empty where there are none
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from conquiet.errors import MessageKeyError

MAX_PART_BYTES: Final = 255
"""Longest part of a key, in UTF-8. A server outside strict mode cuts a longer part: two messages could share a key."""

OUTBOX_ID: Final = "_outbox_id"
"""Field in which a payload from an outbox carries its id."""

EVENT: Final = "_event"
"""Field in which a payload from an outbox carries its event, in a plain stream."""


class InboxKey(NamedTuple):
    """Identifies a message to the inbox: messages with equal keys have one effect together.

    Attributes:
        source: The stream or the queue.
        group: The consumer group; empty for RabbitMQ.
        id: Id of the message within both.
    """

    source: str
    group: str
    id: str


KeyFunction = Callable[[Any], "str | InboxKey"]


def key_of(msg: Any, key: KeyFunction | None = None) -> InboxKey:
    """Return the key of a message, checked.

    Args:
        msg: Something with ``stream`` (or ``source``), ``group`` and ``id``, such as a ``QueueMessage``; anything, if
            the key function returns a whole ``InboxKey``.
        key: Chooses the id, or the whole key, from the message.

    Raises:
        MessageKeyError: The message has no usable key. The text does not show it: a business key may be personal
            data.
    """
    if key is None and (usual := _usual_key(msg)) is not None:
        return usual
    chosen = None if key is None else key(msg)
    if not isinstance(chosen, InboxKey):
        chosen = InboxKey(
            _part(msg, "stream", "source"), _part(msg, "group"), _part(msg, "id") if chosen is None else chosen
        )
    return require_key(chosen)


def require_key(key: object) -> InboxKey:
    """Return a key that can be stored, checked; see ``key_of``."""
    if not isinstance(key, InboxKey):
        raise MessageKeyError(f"the key must be an InboxKey(source, group, id), got a {type(key).__name__}")
    if not key.id or not key.source:
        raise MessageKeyError("the inbox key of a message is empty: two messages without a key would count as one")
    for name, value in zip(InboxKey._fields, key, strict=True):
        _require_storable(name, value)
    return key


def _usual_key(msg: Any) -> InboxKey | None:
    """Return the key of a message with short ASCII parts, as nearly all have; None to check it in detail."""
    try:
        source, group, message_id = msg.stream, msg.group, msg.id
    except AttributeError:
        return None
    if not (
        type(source) is str
        and type(group) is str
        and type(message_id) is str
        and 0 < len(source) <= MAX_PART_BYTES
        and len(group) <= MAX_PART_BYTES
        and 0 < len(message_id) <= MAX_PART_BYTES
        and source.isascii()
        and group.isascii()
        and message_id.isascii()
    ):
        return None
    return InboxKey(source, group, message_id)


def by_outbox_id(msg: Any) -> str:
    """Return the outbox id of a message: a key function for streams that an ``OutboxRelay`` publishes to.

    The same row published twice (a relay died between publishing and deleting) is two entries with one
    outbox id. A message without one is identified by its entry id.
    """
    return _outbox_id(msg.payload) or str(msg.id)


def outbox_id_of(payload: Any) -> str:
    """Return the outbox id in a payload itself: a key for ``for_rabbit``, where there is no entry id instead."""
    found = _outbox_id(payload)
    if found is None:
        raise MessageKeyError(f"the message has no field {OUTBOX_ID}: it was not published by a relay")
    return found


def _outbox_id(payload: Any) -> str | None:
    found = payload.get(OUTBOX_ID)
    return found if isinstance(found, str) and found else None


def _part(msg: Any, *names: str) -> str:
    for name in names:
        value = getattr(msg, name, None)
        if value is not None:
            return value  # type: ignore[no-any-return]
    raise MessageKeyError(
        f"a {type(msg).__name__} has no {' or '.join(names)}: give the inbox a key function that returns an InboxKey"
    )


def _require_storable(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise MessageKeyError(f"the {name} of an inbox key must be a string, got a {type(value).__name__}")
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        length = -1
    if length < 0:  # raised out here so that the codec's error, which carries the text, is not its context
        raise MessageKeyError(f"the {name} of an inbox key is text that cannot be UTF-8")
    if length > MAX_PART_BYTES:
        raise MessageKeyError(
            f"the {name} of an inbox key has {length} bytes, and at most {MAX_PART_BYTES} can be stored; "
            "use a digest of it as the key"
        )
