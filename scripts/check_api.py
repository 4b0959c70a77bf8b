"""Compare the public interface with the last release: a removed name or a renamed argument is an error.

    python scripts/check_api.py [--repository FOLDER]

The last release is the newest tag that HEAD can reach. A tag of HEAD itself is the release that is being made, if the
checkout is clean: then it is the one before. Without a tag there is nothing to compare with, and the script says so.
``griffe`` finds the differences.
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def last_tag(repository: Path) -> str | None:
    """Return the tag of the last release."""
    newest = _git(repository, "describe", "--tags", "--abbrev=0").strip()
    if _git(repository, "status", "--porcelain", "--", "src"):
        return newest or None
    here = [f"--exclude={tag}" for tag in _git(repository, "tag", "--points-at", "HEAD").split()]
    return _git(repository, "describe", "--tags", "--abbrev=0", *here).strip() or newest or None


def _git(repository: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=repository, capture_output=True, text=True, check=False).stdout


def main() -> int:
    """Return the exit code: 1 if the interface is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, default=ROOT)
    repository: Path = parser.parse_args().repository
    tag = last_tag(repository)
    if tag is None:
        print("no release yet: nothing to compare with")
        return 0
    command = [sys.executable, "-m", "griffe", "check", "conquiet", "--search", "src", "--against", tag]
    command += ["--extensions", str(ROOT / "scripts" / "griffe_stubs.py")]
    return subprocess.run(command, cwd=repository, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
