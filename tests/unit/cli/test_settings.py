"""URLs from conquiet.toml."""

from pathlib import Path
from typing import Any

import pytest

from conquiet.cli.settings import DB, REDIS, find_url
from conquiet.errors import ConfigurationError


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("redis_url = geheim", r"conquiet.toml is not TOML \(at line 1, column 13\)"),
        ("redis_url = 'geheim", r"conquiet.toml is not TOML \(at line 1, column 20\)|at end of document"),
        ("x = " + "[" * 5_000, "conquiet.toml (cannot be read|is not TOML)"),
        ("redis-url = 'redis://h'", "a setting 'redis-url' that does not exist"),
        ("[redis]\nurl = 'redis://h'", "a setting 'redis' that does not exist"),
        ("redis_url = ['redis://h']", "redis_url in conquiet.toml must be a string"),
        ("redis_url = '\udcff'", "cannot be read|is not TOML"),
    ],
)
def test_a_file_that_is_wrong_is_one_sentence(
    content: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (REDIS, "CONQUIET_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("conquiet.toml").write_bytes(content.encode("utf-8", "surrogateescape"))

    with pytest.raises(ConfigurationError, match=sentence) as refused:
        find_url("", REDIS)

    assert refused.value.fix
    assert "geheim" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_folder_in_place_of_the_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONQUIET_CONFIG", str(tmp_path))
    monkeypatch.delenv(DB, raising=False)

    with pytest.raises(ConfigurationError, match=r"cannot be read \(IsADirectoryError\)"):
        find_url("", DB)


def test_one_file_may_hold_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {"redis_url": "redis://h", "db_url": "sqlite:///x", "rabbit_url": "amqp://h"}
    file = tmp_path / "shop.toml"
    file.write_text("".join(f'{key} = "{value}"\n' for key, value in settings.items()), encoding="utf-8")
    monkeypatch.setenv("CONQUIET_CONFIG", str(file))
    monkeypatch.delenv(DB, raising=False)

    assert find_url("", DB) == "sqlite:///x"
