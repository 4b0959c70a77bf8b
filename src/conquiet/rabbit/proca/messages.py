"""The two message formats of the original, as types and as checks. SPEC(004 §2.3).

The types describe what the sender writes. The checks refuse less: only what ``normalize`` cannot process. A new field
in the sender's next release must not dead-letter a day of messages.
"""

from typing import Any, Final, Literal, NotRequired, TypedDict

ACTION_V2: Final = "proca:action:2"
EVENT_V2: Final = "proca:event:2"

# Path of the id of each nested object.
ACTION_IDS: Final = {"campaign": "campaignId", "action": "actionId", "org": "orgId", "actionPage": "actionPageId"}
EVENT_IDS: Final = {"campaign": "campaignId", "action": "actionId", "actionPage": "actionPageId"}

_ACTION_OBJECTS: Final = (*ACTION_IDS, "contact", "personalInfo")
_EVENT_OBJECTS: Final = tuple(EVENT_IDS)


class KeyRef(TypedDict):
    """A public key, by its unpadded base64url text."""

    id: NotRequired[int]
    public: str


class PersonalInfo(TypedDict):
    """Personal data, encrypted for the organisation that may read it."""

    payload: str
    nonce: str
    encryptKey: KeyRef
    signKey: KeyRef


class ActionMessage(TypedDict):
    """``proca:action:2``: a supporter signed, wrote or donated."""

    schema: Literal["proca:action:2"]
    stage: NotRequired[str]
    actionId: int
    actionPageId: int
    campaignId: int
    orgId: int
    org: NotRequired[dict[str, Any]]
    action: NotRequired[dict[str, Any]]
    campaign: NotRequired[dict[str, Any]]
    actionPage: NotRequired[dict[str, Any]]
    contact: NotRequired[dict[str, Any]]
    personalInfo: NotRequired[PersonalInfo | None]
    tracking: NotRequired[dict[str, Any] | None]
    privacy: NotRequired[dict[str, Any] | None]


class EventMessage(TypedDict):
    """``proca:event:2``: something changed, such as the status of an email address."""

    schema: Literal["proca:event:2"]
    eventType: NotRequired[str]
    timestamp: NotRequired[str]
    actionId: NotRequired[int]
    actionPageId: NotRequired[int]
    campaignId: NotRequired[int]
    action: NotRequired[dict[str, Any] | None]
    campaign: NotRequired[dict[str, Any] | None]
    actionPage: NotRequired[dict[str, Any] | None]


def check_action(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message, or raise ``ValueError`` if a nested value is not an object."""
    return _check_objects(message, _ACTION_OBJECTS)


def check_event(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message, or raise ``ValueError`` if a nested value is not an object."""
    return _check_objects(message, _EVENT_OBJECTS)


def _check_objects(message: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    for name in names:
        value = message.get(name)
        if value is not None and not isinstance(value, dict):
            raise ValueError(name)
    return message
