"""Count lines of code: no blank lines, no comments, no docstrings.

    python scripts/code_lines.py                  lines of src/conquiet per package
    python scripts/code_lines.py --since COMMIT   the same beside an older commit, and the files over 400 lines

Packages that were renamed are shown under their new name.
"""

import argparse
import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "src/conquiet"
SUFFIXES = (".py", ".pyi")
MAX_FILE_LINES = 400
RENAMED = {"kernel": "core", "bridge": "transactional"}

_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


def docstring_lines(tree: ast.AST) -> set[int]:
    """Return the line numbers of docstrings, those below assignments included."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def code_lines(text: str) -> int:
    """Return the number of lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(ast.parse(text)))


def package_of(path: str) -> str:
    """Return the package of a file below src/conquiet; modules of the top level count as one."""
    parts = path.removeprefix(f"{SOURCE}/").split("/")
    return "(top level)" if len(parts) == 1 else RENAMED.get(parts[0], parts[0])


def files_now() -> Iterator[tuple[str, str]]:
    """Yield path and text of each module and stub in the working tree."""
    for path in sorted((ROOT / SOURCE).rglob("*.py*")):
        if path.suffix in SUFFIXES:
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def files_at(commit: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of each module and stub of a commit."""
    names = _git("ls-tree", "-r", "--name-only", commit, "--", SOURCE).splitlines()
    for name in names:
        if name.endswith(SUFFIXES):
            yield name, _git("show", f"{commit}:{name}")


def count(files: Iterator[tuple[str, str]]) -> tuple[Counter[str], list[tuple[int, str]]]:
    """Return code lines per package, and the files with more physical lines than one file should have."""
    totals: Counter[str] = Counter()
    long_files = []
    for path, text in files:
        totals[package_of(path)] += code_lines(text)
        if (physical := len(text.splitlines())) > MAX_FILE_LINES:
            long_files.append((physical, path))
    return totals, long_files


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", metavar="COMMIT", help="compare with this commit")
    args = parser.parse_args()

    now, long_files = count(files_now())
    before = count(files_at(args.since))[0] if args.since else Counter[str]()
    print(f"{'package':<18} {'before':>8} {'now':>8} {'change':>8}" if args.since else f"{'package':<18} {'now':>8}")
    for name in [*sorted(now | before), "all"]:
        old, new = (before.total(), now.total()) if name == "all" else (before[name], now[name])
        print(f"{name:<18} {old:>8,} {new:>8,} {new - old:>+8,}" if args.since else f"{name:<18} {new:>8,}")
    for physical, path in sorted(long_files, reverse=True):
        print(f"over {MAX_FILE_LINES} lines: {path} ({physical})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
