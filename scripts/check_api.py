"""Compare the public interface with the last release: a removed name or a renamed argument is an error.

    python scripts/check_api.py [--repository FOLDER]

The last release is the newest tag that HEAD can reach. Without a tag there is nothing to compare with, and the script
says so. ``griffe`` finds the differences.
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def last_tag(repository: Path) -> str | None:
    """Return the newest tag that HEAD can reach."""
    done = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0"], cwd=repository, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


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
    return subprocess.run(command, cwd=repository, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
