"""An environment of a fetched interpreter starts it with its own libc, and knows its own place."""

import subprocess
from pathlib import Path

import fetch_pythons
import pytest
from fetch_servers import FetchError


@pytest.fixture
def fetched(tmp_path: Path) -> Path:
    """A folder like a fetched interpreter's, with a dynamic loader that prints its arguments."""
    libraries = tmp_path / "root" / "usr" / "lib" / "x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    loader = libraries / "ld-linux-x86-64.so.2"
    loader.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    loader.chmod(0o755)
    return tmp_path


def words(launcher: Path, *arguments: str) -> list[str]:
    return subprocess.run([launcher, *arguments], capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_interpreter_runs_with_the_libraries_of_its_root(fetched: Path) -> None:
    launcher = fetched / "python3.13"
    fetch_pythons.write_launcher(fetched, "3.13", launcher)

    root = fetched / "root"
    libraries = str(root / "usr/lib/x86_64-linux-gnu")
    program = str(root / "usr/bin/python3.13")
    assert words(launcher, "-c", "a b") == ["--inhibit-cache", "--library-path", libraries, program, "-c", "a b"]


def test_the_launcher_of_an_environment_gives_its_own_name(fetched: Path) -> None:
    launcher = fetched / "python"
    fetch_pythons.write_launcher(fetched, "3.13", launcher, of_environment=True)

    assert words(launcher)[3:5] == ["--argv0", str(launcher)]


def test_packages_without_a_loader_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="brought no dynamic loader"):
        fetch_pythons.write_launcher(tmp_path, "3.13", tmp_path / "python")
