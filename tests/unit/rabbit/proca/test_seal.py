import base64
import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.rabbit.conftest import Vector

from conquiet.errors import ConfigurationError
from conquiet.rabbit import FileKeyStore, MemoryKeyStore, seal
from conquiet.rabbit.proca.decrypt import Decryptor, Opened


def test_seal_makes_the_box_that_the_original_opens(vector: Vector) -> None:
    made = seal(
        vector.fields,
        recipient_public=vector.encrypt_public,
        sender_private=vector.sender_private,
        nonce=vector.nonce,
    )

    assert made["payload"] == vector.payload
    assert (made["nonce"], made["encryptKey"]["public"]) == (vector.info["nonce"], vector.encrypt_public)
    assert made["signKey"]["public"] == vector.sign_public


def test_encrypted_data_can_be_decrypted_and_no_nonce_repeats(vector: Vector) -> None:
    boxes = [
        seal({"n": 1}, recipient_public=vector.encrypt_public, sender_private=vector.sender_private) for _ in range(2)
    ]

    assert boxes[0]["nonce"] != boxes[1]["nonce"]
    opened = [Decryptor(vector.store).open(dict(box)) for box in boxes]
    assert all(isinstance(one, Opened) and one.fields == {"n": 1} for one in opened)


@pytest.mark.parametrize(
    "wrong",
    [
        {"recipient_public": "short"},
        {"sender_private": b"short"},
        {"sender_private": "not base64!"},
        {"nonce": b"short"},
        {"fields": {"secret-value": object()}},
    ],
)
def test_seal_refuses_what_is_misshapen_and_quotes_nothing(vector: Vector, wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"recipient_public": vector.encrypt_public, "sender_private": vector.sender_private}
    given = {"fields": {}} | right | wrong

    with pytest.raises(ConfigurationError) as raised:
        seal(given.pop("fields"), **given)

    assert "secret-value" not in str(raised.value)


@pytest.fixture
def text(vector: Vector) -> str:
    private = base64.urlsafe_b64encode(vector.recipient_private).rstrip(b"=").decode()
    return f'{{"{vector.encrypt_public}": {{"private": "{private}"}}}}'


def test_keys_come_from_a_text_a_variable_or_a_mapping(
    vector: Vector, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_KEYS", text)
    private = text.split('"')[5]

    stores = [
        MemoryKeyStore.from_text(text),
        MemoryKeyStore.from_env("SHOP_KEYS"),
        MemoryKeyStore({vector.encrypt_public: private}),
        MemoryKeyStore({vector.encrypt_public: {"private": private}}),
    ]

    for store in stores:
        assert store.private_key(vector.encrypt_public) == vector.recipient_private
        assert store.private_key("other") is None
        assert private not in repr(store)
        assert len(store) == 1


@pytest.mark.parametrize("broken", ["", "[]", '{"a": {"private": 7}}', "\ud800"])
def test_keys_that_are_none_are_refused_without_being_quoted(broken: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        MemoryKeyStore.from_text(broken, source="environment variable SHOP_KEYS")

    assert "SHOP_KEYS" in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(ConfigurationError, match="no environment variable SHOP_NO_KEYS"):
        MemoryKeyStore.from_env("SHOP_NO_KEYS")


@pytest.fixture
def volume(tmp_path: Path, text: str) -> Path:
    """A Secret volume as the kubelet makes it."""
    version = tmp_path / "..2026_11_16_20_00_00.1"
    version.mkdir()
    (version / "keys.json").write_text(text)
    (version / "keys.json").chmod(0o440)
    (tmp_path / "..data").symlink_to(version.name)
    (tmp_path / "keys.json").symlink_to("..data/keys.json")
    return tmp_path / "keys.json"


def test_a_secret_volume_is_read_when_it_is_said_to_be_one(vector: Vector, volume: Path) -> None:
    store = FileKeyStore(volume, secret_volume=True)

    assert store.private_key(vector.encrypt_public) == vector.recipient_private
    with pytest.raises(ConfigurationError, match="secret_volume=True"):
        FileKeyStore(volume)


@pytest.mark.parametrize("mode", [0o444, 0o460, 0o604])
def test_a_secret_volume_open_to_others_is_refused(volume: Path, mode: int) -> None:
    volume.resolve().chmod(mode)

    with pytest.raises(ConfigurationError, match="open to others"):
        FileKeyStore(volume, secret_volume=True)


def test_a_link_out_of_the_volume_is_refused(volume: Path, tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "keys.json"
    elsewhere.write_text(text)
    elsewhere.chmod(0o400)
    os.unlink(volume)  # noqa: PTH108
    volume.symlink_to(elsewhere)

    with pytest.raises(ConfigurationError, match="leads out of its folder"):
        FileKeyStore(volume, secret_volume=True)
