"""The two message formats of the original, as types, in the form in which they are sent. SPEC(004 §2.3)."""

from typing import Any, Final, Literal, NotRequired, TypedDict

ACTION_V2: Final = "proca:action:2"
EVENT_V2: Final = "proca:event:2"

# Path of the id of each nested object.
ACTION_IDS: Final = {"campaign": "campaignId", "action": "actionId", "org": "orgId", "actionPage": "actionPageId"}
EVENT_IDS: Final = {"campaign": "campaignId", "action": "actionId", "actionPage": "actionPageId"}


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
