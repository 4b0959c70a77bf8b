"""``conquiet dev`` on a machine without servers."""

from pathlib import Path

import pytest

from conquiet.cli.dev import command
from conquiet.cli.errors import CommandError
from conquiet.core.server_urls import REDIS
from conquiet.testing.discovery import REDIS_VARIABLE


def test_without_a_server_program_dev_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(REDIS, raising=False)
    monkeypatch.setenv(REDIS_VARIABLE, str(tmp_path / "no-such-program"))

    with pytest.raises(CommandError, match=r"no Redis to use.*no-such-program") as refused, command._redis():
        pass

    assert REDIS in refused.value.fix
