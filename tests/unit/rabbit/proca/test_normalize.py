import copy
from collections.abc import Callable
from typing import Any

import pytest

from conquiet.rabbit.message_schemas import SchemaRegistry
from conquiet.rabbit.pipeline import Pipeline, Ready
from conquiet.rabbit.proca.normalize import merge_contact, normalize_action, normalize_event

IDS = {"campaignId": 1, "actionId": 2, "orgId": 3, "actionPageId": 4}
NESTED: dict[str, Any] = {"campaign": {"name": "c"}, "action": {}, "org": {"id": 99}, "actionPage": {"locale": "pl"}}


@pytest.mark.spec("MW-003.2")
def test_the_four_ids_of_an_action_are_copied_into_their_objects() -> None:
    message = normalize_action({**IDS, **copy.deepcopy(NESTED)})

    assert message["campaign"] == {"name": "c", "id": 1}
    assert message["action"] == {"id": 2}
    assert message["org"] == {"id": 3}
    assert message["actionPage"] == {"locale": "pl", "id": 4}


@pytest.mark.spec("MW-003.2")
def test_an_event_has_three_and_its_org_is_left_alone() -> None:
    message = normalize_event({**IDS, **copy.deepcopy(NESTED)})

    assert [message[name]["id"] for name in ("campaign", "action", "actionPage")] == [1, 2, 4]
    assert message["org"] == {"id": 99}


@pytest.mark.spec("MW-003.2")
def test_missing_objects_and_ids_stay_missing() -> None:
    assert normalize_action(dict(IDS)) == IDS
    assert normalize_action({"campaignId": 1, "campaign": None}) == {"campaignId": 1, "campaign": None}
    assert normalize_action({"campaign": {"id": 5}}) == {"campaign": {"id": 5}}


@pytest.mark.spec("MW-003.1")
def test_other_schemas_are_not_normalised() -> None:
    body = b'{"schema": "shop:order:1", "campaignId": 1, "campaign": {}}'

    prepared = Pipeline(SchemaRegistry().register("shop:order:1")).prepare(None, body)

    assert isinstance(prepared, Ready)
    assert prepared.message["campaign"] == {}


@pytest.mark.spec("MW-003.4", "MW-003.5")
def test_personal_fields_are_merged_over_the_contact() -> None:
    message = {"contact": {"email": "old", "area": "PL"}}

    merged = merge_contact(message, {"email": "new", "firstName": "Jane"})

    assert merged == {"contact": {"email": "new", "area": "PL", "firstName": "Jane"}}
    assert merge_contact({}, {"email": "new"}) == merge_contact({"contact": None}, {"email": "new"})


@pytest.mark.spec("MW-003.6")
@pytest.mark.parametrize("step", [normalize_action, normalize_event, lambda m: merge_contact(m, {"email": "x"})])
def test_no_step_changes_its_input(step: Callable[..., Any]) -> None:
    sealed = {"payload": "AAAA", "nonce": "BBBB", "encryptKey": {"public": "x"}, "signKey": {"public": "y"}}
    message = {**IDS, **copy.deepcopy(NESTED), "contact": {"email": "old"}, "personalInfo": sealed, "tracking": {}}
    before = copy.deepcopy(message)

    step(message)

    assert message == before
