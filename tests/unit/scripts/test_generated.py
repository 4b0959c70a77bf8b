"""A rendered page is written, or compared with what is stored."""

from pathlib import Path

import generated
import pytest


def test_a_page_that_differs_or_is_missing_is_named_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same, other, missing = (tmp_path / name for name in ("same.md", "other.md", "missing.md"))
    same.write_text("text", encoding="utf-8")
    other.write_text("old", encoding="utf-8")

    assert generated.write({same: "text"}, check=True) == 0
    assert generated.write({same: "text", other: "new", missing: "new"}, check=True) == 1

    assert "out of date: other.md, missing.md;" in capsys.readouterr().err
    assert other.read_text(encoding="utf-8") == "old"
    assert not missing.exists()


def test_without_a_check_every_page_is_written(tmp_path: Path) -> None:
    assert generated.write({tmp_path / "page.md": "Größe"}, check=False) == 0

    assert (tmp_path / "page.md").read_text(encoding="utf-8") == "Größe"
