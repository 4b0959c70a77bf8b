"""Build what is released: wheel, sdist and SBOM, from the committed files alone.

    python scripts/release.py --into dist

Builds twice, from two checkouts of HEAD in different folders, and refuses to write anything unless both are equal byte
for byte. The SBOM (CycloneDX) lists what requirements.lock pins, and the script checks that it lists nothing else.
Nothing is uploaded: .github/workflows/release.yml does that.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = "requirements.lock"
SBOM = "conquiet.cdx.json"

_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)


class ReleaseError(Exception):
    """A release that must not go out."""


def main() -> None:
    """Build, check, and copy the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=ROOT / "dist")
    folder: Path = parser.parse_args().into
    with tempfile.TemporaryDirectory() as scratch:
        first = build(ROOT, Path(scratch, "first"))
        second = build(ROOT, Path(scratch, "somewhere", "else"))
        require_equal(first, second)
        sbom = make_sbom(ROOT / LOCK, Path(scratch, SBOM))
        require_exact(sbom, (ROOT / LOCK).read_text(encoding="utf-8"))
        run(sys.executable, "-m", "twine", "check", "--strict", *map(str, first))
        for path in keep([*first, sbom], folder):
            print(path)


def keep(files: list[Path], folder: Path) -> list[Path]:
    """Copy files into a folder in place of those of other versions: the container installs every wheel there."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("conquiet[-.]*"):
        old.unlink()
    return [Path(shutil.copy(path, folder)) for path in files]


def build(repository: Path, scratch: Path) -> list[Path]:
    """Build wheel and sdist of HEAD in a new folder and return their paths."""
    source, out = scratch / "source", scratch / "out"
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=repository, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(source, filter="data")
    run(sys.executable, "-m", "hatchling", "build", "-d", str(out), cwd=source, SOURCE_DATE_EPOCH=date_of(repository))
    return sorted(out.iterdir())


def date_of(repository: Path) -> str:
    """Return the time of HEAD's commit, in seconds: the time of every file in the archives."""
    done = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=repository, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def require_equal(first: list[Path], second: list[Path]) -> None:
    """Raise unless both builds made the same files with the same bytes.

    Raises:
        ReleaseError: A file differs. The text names it.
    """
    if [path.name for path in first] != [path.name for path in second]:
        raise ReleaseError("two builds made different files")
    for one, other in zip(first, second, strict=True):
        if one.read_bytes() != other.read_bytes():
            raise ReleaseError(f"two builds of {one.name} differ: the build depends on its folder or on the time")


def make_sbom(lock: Path, target: Path) -> Path:
    """Write the SBOM of a lock file."""
    run(
        sys.executable, "-m", "cyclonedx_py", "requirements", str(lock), "--pyproject", str(ROOT / "pyproject.toml"),
        "--mc-type", "library", "--output-reproducible", "--short-PURLs", "-o", str(target),
    )  # fmt: skip
    return target


def require_exact(sbom: Path, lock: str) -> None:
    """Raise unless the SBOM lists exactly what the lock pins.

    Raises:
        ReleaseError: It lists more or less. The text names the packages.
    """
    components = json.loads(sbom.read_text(encoding="utf-8"))["components"]
    listed = {(canonical(one["name"]), one["version"]) for one in components}
    difference = listed ^ pinned(lock)
    if difference:
        names = ", ".join(sorted(f"{name} {version}" for name, version in difference))
        raise ReleaseError(f"the SBOM and {LOCK} differ in: {names}")


def pinned(lock: str) -> set[tuple[str, str]]:
    """Return names and versions that a lock file pins."""
    return {(canonical(name), version) for name, version in _PINNED.findall(lock)}


def canonical(name: str) -> str:
    """Return a package's name in its normal form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def run(*command: str, cwd: Path = ROOT, **environment: str) -> None:
    """Run a command; show its output only if it fails.

    Raises:
        ReleaseError: It failed.
    """
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(command[:4])} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    try:
        main()
    except ReleaseError as error:
        sys.exit(str(error))
