"""Copy ids to where the syncer expects them, and merge personal data into the contact. Pure: the input is not changed.

SPEC(004 §3). A missing nested object and a missing id stay missing. A message is refused only if one of its objects
cannot be read as one: a new field in the sender's next release must not dead-letter a day of messages.
"""

from collections.abc import Mapping
from typing import Any

from conquiet.rabbit.proca.messages import ACTION_IDS, EVENT_IDS


def normalize_action(message: dict[str, Any]) -> dict[str, Any]:
    """Return an action with ``campaign.id``, ``action.id``, ``org.id`` and ``actionPage.id`` filled in.

    Raises:
        ValueError: A nested object is something else.
    """
    return _with_ids(message, ACTION_IDS, "contact", "personalInfo")


def normalize_event(message: dict[str, Any]) -> dict[str, Any]:
    """Return an event with ``campaign.id``, ``action.id`` and ``actionPage.id`` filled in; see above."""
    return _with_ids(message, EVENT_IDS)


def merge_contact(message: dict[str, Any], personal: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message with ``personal`` merged into its contact; decrypted values replace others."""
    return message | {"contact": (message.get("contact") or {}) | dict(personal)}


def _with_ids(message: dict[str, Any], ids: Mapping[str, str], *other_objects: str) -> dict[str, Any]:
    for name in (*ids, *other_objects):
        value = message.get(name)
        if value is not None and not isinstance(value, dict):
            raise ValueError(name)
    copied = dict(message)
    for name, source in ids.items():
        nested = message.get(name)
        if nested is not None and source in message:
            copied[name] = nested | {"id": message[source]}
    return copied
