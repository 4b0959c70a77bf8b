"""Check that each module which a decision explains refers to it, or write the missing references.

    python scripts/link_decisions.py            print the modules without a reference
    python scripts/link_decisions.py --write    add "See docs/decisions/NNNN." to their docstrings

A decision names its modules in the line "Explains". A package counts as linked if one of its own modules refers to it.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DECISIONS = ROOT / "docs" / "decisions"


def explained() -> Iterator[tuple[str, str]]:
    """Yield number and module of each decision."""
    for note in sorted(DECISIONS.glob("[0-9]*.md")):
        for paragraph in re.findall(r"^Explains: ((?:.+\n)+)", note.read_text(encoding="utf-8"), re.MULTILINE):
            for module in re.findall(r"`(conquiet[\w.]*)`", paragraph):
                yield note.name[:4], module


def file_of(module: str) -> Path | None:
    """Return the file of a module, or the ``__init__`` of a package; None if there is neither."""
    path = ROOT / "src" / module.replace(".", "/")
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def refers_to(path: Path, number: str) -> bool:
    """Return whether a module, or one module of a package, names the decision."""
    files = path.parent.glob("*.py") if path.name == "__init__.py" else [path]
    return any(re.search(rf"\b{number}\b", file.read_text(encoding="utf-8")) for file in files)


def missing() -> dict[Path, list[str]]:
    """Return the files that lack a reference, each with the numbers of its decisions."""
    found: dict[Path, list[str]] = {}
    for number, module in explained():
        path = file_of(module)
        if path is not None and not refers_to(path, number):
            found.setdefault(path, []).append(number)
    return found


def with_reference(text: str, numbers: list[str]) -> str:
    """Return the source with a last paragraph in the module docstring."""
    docstring = ast.parse(text).body[0]
    lines = text.splitlines(keepends=True)
    first, last = docstring.lineno - 1, (docstring.end_lineno or docstring.lineno)
    body = "".join(lines[first:last]).rstrip().removesuffix('"""').rstrip()
    reference = f"See docs/decisions/{' and '.join(numbers)}."
    return "".join([*lines[:first], f'{body}\n\n{reference}\n"""\n', *lines[last:]])


def main() -> int:
    """Print or write; the exit code is 1 when a reference is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="add the missing references")
    args = parser.parse_args()

    found = missing()
    for path, numbers in found.items():
        print(f"{path.relative_to(ROOT)}: {', '.join(numbers)}")
        if args.write:
            path.write_text(with_reference(path.read_text(encoding="utf-8"), numbers), encoding="utf-8")
    return 1 if found and not args.write else 0


if __name__ == "__main__":
    sys.exit(main())
