import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from conquiet.errors import ConfigurationError
from conquiet.rabbit.proca.keystore import FileKeyStore, from_base64url

SECRET = bytes(range(1, 33))
SECRET_TEXT = base64.urlsafe_b64encode(SECRET).rstrip(b"=").decode()


def a_key_file(folder: Path, content: Any = None, mode: int = 0o600) -> Path:
    path = folder / "keys.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content or {"pub": {"private": SECRET_TEXT}}))
    path.chmod(mode)
    return path


def test_keys_are_found_by_the_text_of_the_public_key(tmp_path: Path) -> None:
    store = FileKeyStore(a_key_file(tmp_path))

    assert store.private_key("pub") == SECRET
    assert store.private_key("other") is None
    assert len(store) == 1
    assert SECRET_TEXT not in repr(store)


@pytest.mark.parametrize("path", [None, 7, b"keys.json", "a\0b", "\ud800"])
def test_an_argument_that_is_not_a_path_is_refused(path: Any) -> None:
    with pytest.raises(ConfigurationError, match="key file"):
        FileKeyStore(path)


def test_stricter_than_0600_is_fine(tmp_path: Path) -> None:
    assert len(FileKeyStore(a_key_file(tmp_path, mode=0o400))) == 1


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604, 0o620, 0o700])
def test_a_file_open_to_others_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigurationError, match="chmod 600"):
        FileKeyStore(a_key_file(tmp_path, mode=mode))


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(a_key_file(tmp_path))

    with pytest.raises(ConfigurationError, match="symbolic link"):
        FileKeyStore(link)


def test_a_missing_file_and_a_folder_and_a_pipe_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (tmp_path / "missing", tmp_path, pipe):
        with pytest.raises(ConfigurationError, match="key file"):
            FileKeyStore(path)


def test_another_owner_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = a_key_file(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)

    with pytest.raises(ConfigurationError, match="another user"):
        FileKeyStore(path)


@pytest.mark.parametrize(
    "content",
    [
        "not json " + SECRET_TEXT,
        "[]",
        json.dumps({"pub": SECRET_TEXT}),
        json.dumps({"pub": {"private": SECRET_TEXT[:-4]}}),
        json.dumps({"pub": {"secret": SECRET_TEXT}}),
    ],
)
def test_a_file_that_is_no_key_file_is_refused_without_quoting_it(tmp_path: Path, content: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FileKeyStore(a_key_file(tmp_path, content))

    assert SECRET_TEXT[:20] not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("text", "raw"), [("AQI", b"\1\2"), ("AQI=", b"\1\2"), ("_-8", b"\xff\xef"), ("", b""), ("A", None), ("+/8", None)]
)
def test_base64url_with_and_without_padding(text: str, raw: bytes | None) -> None:
    assert from_base64url(text) == raw
