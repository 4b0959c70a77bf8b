"""Write pages and pictures that are rendered from other files, or compare them with what is stored."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def main(description: str | None, render: Callable[[], Mapping[Path, str]]) -> int:
    """Write what ``render`` returns; with ``--check`` only compare. Return the exit code."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    return write(render(), check=parser.parse_args().check)


def write(files: Mapping[Path, str], *, check: bool) -> int:
    """Write the texts of these files; with ``check`` name those that differ, and return 1 if there are any."""
    stale = []
    for path, text in files.items():
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
    if stale:
        print(f"out of date: {', '.join(stale)}; write it by the same script without --check", file=sys.stderr)
    return 1 if stale else 0
