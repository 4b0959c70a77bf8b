"""Detecting changed source files."""

from pathlib import Path

from conquiet.cli.worker.reload import SourceWatch


def test_source_files_are_watched_and_virtual_environments_are_not(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    (tmp_path / "shop.py").write_text("1")
    watch = SourceWatch(tmp_path)
    assert watch.changed() is None

    (tmp_path / "venv" / "library.py").write_text("1")
    (tmp_path / "notes.txt").write_text("1")
    assert watch.changed() is None
    (tmp_path / "new.py").write_text("1")
    assert watch.changed() == "new.py"
    (tmp_path / "shop.py").unlink()
    assert watch.changed() == "shop.py"
