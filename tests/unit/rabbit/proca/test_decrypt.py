"""NaCl boxes: opened with the original's own vector, and refused in every other case for the right reason."""

from typing import Any

import pytest
from tests.unit.rabbit.conftest import Vector

from conquiet.rabbit.decode import Unreadable
from conquiet.rabbit.message_schemas import SchemaRegistry
from conquiet.rabbit.pipeline import Pipeline, Ready
from conquiet.rabbit.proca.decrypt import Decryptor, KeyFault, Opened

MALFORMED = Unreadable("personalInfo is malformed")
NOT_AUTHENTIC = Unreadable("personalInfo does not authenticate")


@pytest.mark.spec("MW-003.3")
def test_the_vector_of_the_original_is_opened(vector: Vector) -> None:
    assert Decryptor(vector.store).open(vector.info) == Opened(vector.fields)


def test_our_own_box_is_the_same_box(vector: Vector) -> None:
    sealed = vector.seal('{"email":"jane@example.org","firstName":"Jane","lastName":"Doé"}'.encode())

    assert sealed["payload"] == vector.payload


@pytest.mark.spec("MW-003.3")
@pytest.mark.parametrize(
    "change",
    [
        {"payload": None},
        {"payload": "not base64!"},
        {"payload": 7},
        {"nonce": None},
        {"nonce": "AAAA"},
        {"encryptKey": None},
        {"encryptKey": {}},
        {"encryptKey": {"public": 7}},
        {"encryptKey": "text"},
        {"signKey": None},
        {"signKey": {"public": "AAAA"}},
        {"signKey": {"public": "é"}},
        {"signKey": {"public": "A" * 43}},
    ],
)
def test_a_misshapen_box_is_a_failure_of_the_message(vector: Vector, change: dict[str, Any]) -> None:
    assert Decryptor(vector.store).open(vector.info | change) == MALFORMED


@pytest.mark.spec("MW-003.3")
def test_a_box_that_does_not_authenticate_is_a_failure_of_the_message(vector: Vector) -> None:
    decryptor = Decryptor(vector.store)

    assert decryptor.open(vector.info | {"payload": "A" + vector.payload[1:]}) == NOT_AUTHENTIC
    assert decryptor.open(vector.info | {"payload": ""}) == NOT_AUTHENTIC
    assert decryptor.open(vector.info | {"signKey": {"public": vector.encrypt_public}}) == NOT_AUTHENTIC


@pytest.mark.parametrize("plain", [b"", b"[]", b'"text"', b"{", b"\xff"])
def test_a_box_that_holds_no_object_is_a_failure_of_the_message(vector: Vector, plain: bytes) -> None:
    opened = Decryptor(vector.store).open(vector.seal(plain))

    assert opened == Unreadable("personalInfo does not hold a JSON object")


@pytest.mark.spec("MW-003.3")
@pytest.mark.parametrize(
    ("secret", "reason"),
    [
        (None, "the key store does not have this key"),
        (b"short", "the key store's private key is not 32 bytes"),
        (bytes(range(2, 34)), "the key store's private key belongs to another public key"),
    ],
)
def test_a_key_we_cannot_use_is_a_fault_of_the_configuration(vector: Vector, secret: bytes | None, reason: str) -> None:
    store = vector.store
    store.keys = {} if secret is None else {vector.encrypt_public: secret}

    assert Decryptor(store).open(vector.info) == KeyFault(vector.encrypt_public, reason)


def an_action(**fields: Any) -> bytes:
    import json

    return json.dumps({"schema": "proca:action:2", "contact": {"email": "old", "area": "PL"}, **fields}).encode()


@pytest.mark.spec("MW-003.3", "MW-003.4", "MW-003.5")
def test_decrypted_fields_reach_the_contact_of_an_action(vector: Vector) -> None:
    pipeline = Pipeline(SchemaRegistry(), decryptor=Decryptor(vector.store))

    prepared = pipeline.prepare(None, an_action(personalInfo=vector.info))

    assert isinstance(prepared, Ready)
    assert prepared.message["contact"] == {"area": "PL", **vector.fields}


@pytest.mark.spec("MW-003.3")
def test_nothing_is_decrypted_without_a_key_store_or_without_personal_info(vector: Vector) -> None:
    without_store = Pipeline(SchemaRegistry()).prepare(None, an_action(personalInfo=vector.info))
    with_store = Pipeline(SchemaRegistry(), decryptor=Decryptor(vector.store))

    assert isinstance(without_store, Ready)
    assert without_store.message["contact"] == {"email": "old", "area": "PL"}
    for body in (an_action(), an_action(personalInfo=None)):
        prepared = with_store.prepare(None, body)
        assert isinstance(prepared, Ready)
        assert prepared.message["contact"] == {"email": "old", "area": "PL"}


@pytest.mark.spec("MW-003.1", "MW-003.3")
def test_events_are_not_decrypted(vector: Vector) -> None:
    body = an_action(personalInfo=vector.info).replace(b"proca:action:2", b"proca:event:2")

    prepared = Pipeline(SchemaRegistry(), decryptor=Decryptor(vector.store)).prepare(None, body)

    assert isinstance(prepared, Ready)
    assert prepared.message["contact"] == {"email": "old", "area": "PL"}


def test_no_repr_on_the_way_shows_a_secret(vector: Vector) -> None:
    decryptor = Decryptor(vector.store)
    opened = decryptor.open(vector.info)
    ready = Pipeline(SchemaRegistry(), decryptor=decryptor).prepare(None, an_action(personalInfo=vector.info))

    for shown in map(repr, (decryptor, opened, ready)):
        assert "jane" not in shown.lower()
        assert "\\x01" not in shown
