"""The web application of ``conquiet dev``."""

import pytest

from conquiet.cli.dev.web import main


def test_an_application_that_cannot_be_imported_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONQUIET_DEBUG", raising=False)

    assert main("no_such_module:api", 1, reload=False) == 2

    said = capsys.readouterr().err
    assert said.startswith(
        "conquiet: no_such_module:api cannot be served: there is no module 'no_such_module'\n  fix: "
    )
