"""JSON from arguments, files and stdin."""

import sys

import pytest

from conquiet.cli.errors import CommandError
from conquiet.cli.payload_input import read_payloads


def test_a_word_is_one_payload() -> None:
    assert list(read_payloads('{"n": 1}')) == [{"n": 1}]


def test_a_closed_stdin_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)

    with pytest.raises(CommandError, match="stdin is closed"):
        list(read_payloads("-"))
