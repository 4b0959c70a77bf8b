"""The release: reproducible archives, an SBOM of exactly the locked packages, and an interface that only grows."""

import json
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import release

SCRIPT = release.ROOT / "scripts" / "check_api.py"


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository with the files that a build needs."""
    folder = tmp_path / "repository"
    folder.mkdir()
    shutil.copytree(release.ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(release.ROOT / name, folder)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=all")
    return folder


def test_two_builds_in_different_folders_are_equal(repository: Path, tmp_path: Path) -> None:
    first = release.build(repository, tmp_path / "first")
    second = release.build(repository, tmp_path / "somewhere" / "else")

    release.require_equal(first, second)
    wheel, sdist = first
    with zipfile.ZipFile(wheel) as files:
        assert "conquiet/py.typed" in files.namelist()
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("/src/conquiet/py.typed") for name in archive.getnames())


def test_builds_that_differ_are_refused(tmp_path: Path) -> None:
    for folder, content in (("a", b"1"), ("b", b"2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.whl").write_bytes(content)

    with pytest.raises(release.ReleaseError, match=r"x\.whl differ"):
        release.require_equal([tmp_path / "a" / "x.whl"], [tmp_path / "b" / "x.whl"])


@pytest.mark.parametrize(
    ("components", "named"),
    [
        ([("redis", "8.1.0")], "msgspec 0.19"),
        ([("redis", "8.1.0"), ("msgspec", "0.19"), ("left-pad", "1")], "left-pad 1"),
        ([("redis", "8.0.0"), ("msgspec", "0.19")], "redis 8.0.0, redis 8.1.0"),
    ],
)
def test_an_sbom_with_more_or_less_than_the_lock_is_refused(
    tmp_path: Path, components: list[tuple[str, str]], named: str
) -> None:
    sbom = tmp_path / "sbom.json"
    sbom.write_text(json.dumps({"components": [{"name": name, "version": version} for name, version in components]}))

    with pytest.raises(release.ReleaseError, match=named):
        release.require_exact(sbom, "redis==8.1.0 \\\n    --hash=sha256:00\nmsgspec==0.19 ; python_version > '3'\n")


def test_a_renamed_argument_breaks_the_interface(tmp_path: Path) -> None:
    package = tmp_path / "src" / "conquiet"
    package.mkdir(parents=True)
    source = package / "__init__.py"
    source.write_text('def emit(event: str) -> None:\n    """Emit."""\n')
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message=released")
    command = [sys.executable, str(SCRIPT), "--repository", str(tmp_path)]
    without_tag = subprocess.run(command, capture_output=True, text=True, check=False)
    git(tmp_path, "tag", "v0.1.0")
    unchanged = subprocess.run(command, capture_output=True, text=True, check=False)
    source.write_text('def emit(name: str) -> None:\n    """Emit."""\n')
    renamed = subprocess.run(command, capture_output=True, text=True, check=False)
    git(tmp_path, "commit", "--quiet", "--all", "--message=renamed")
    git(tmp_path, "tag", "v0.2.0")  # the workflow of a release runs here
    released = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (without_tag.returncode, without_tag.stdout) == (0, "no release yet: nothing to compare with\n")
    assert unchanged.returncode == 0, unchanged.stdout + unchanged.stderr
    assert [renamed.returncode, released.returncode] == [1, 1]
    assert "emit(event)" in renamed.stdout + renamed.stderr


def test_a_name_that_a_stub_no_longer_exports_is_found(tmp_path: Path) -> None:
    package = tmp_path / "src" / "conquiet"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "jobs.py").write_text('def emit(event: str) -> None:\n    """Emit."""\n')
    stub = package / "__init__.pyi"
    stub.write_text("from conquiet.jobs import emit as emit\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message=first")
    git(tmp_path, "tag", "v0.1.0")
    command = [sys.executable, str(SCRIPT), "--repository", str(tmp_path)]

    unchanged = subprocess.run(command, capture_output=True, text=True, check=False)
    stub.write_text("")
    removed = subprocess.run(command, capture_output=True, text=True, check=False)

    assert unchanged.returncode == 0, unchanged.stdout + unchanged.stderr
    assert removed.returncode == 1
    assert "emit" in removed.stdout + removed.stderr


def test_the_sdist_has_every_folder_of_the_repository() -> None:
    """The tests read documents, deploy files and the ledger, and pass in what is unpacked from it, too."""
    root = SCRIPT.parent.parent
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    included = settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    tracked = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=False).stdout
    tops = {line.partition("/")[0] for line in tracked.splitlines() if "/" in line}

    assert {top for top in tops if f"/{top}" not in included} == set()


def test_files_of_other_versions_are_removed(tmp_path: Path) -> None:
    """``COPY dist/*.whl`` of the container would take both."""
    new = tmp_path / "conquiet-0.1.0-py3-none-any.whl"
    new.write_bytes(b"new")
    folder = tmp_path / "dist"
    folder.mkdir()
    (folder / "conquiet-0.0.9-py3-none-any.whl").write_bytes(b"old")
    (folder / "notes.txt").write_bytes(b"kept")

    assert release.keep([new], folder) == [folder / new.name]
    assert sorted(path.name for path in folder.iterdir()) == [new.name, "notes.txt"]
