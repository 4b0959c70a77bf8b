"""Count words of a private dialect in code, documents and the names of tests.

Readers of this field know "fix", "report", "release", "package". They do not know what a room, a letter or somebody who
is told stands for here. This script counts such words; a test keeps the number from growing.

    python scripts/plain_words.py                print the count of each word and of each file
    python scripts/plain_words.py --show WORD    print the lines that hold one word of the table

Code outside docstrings, comments and texts counts as well: a name is read as often as a comment.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

WORDS = {
    "nobody": r"nobody",
    "somebody": r"somebody",
    "anybody": r"anybody|everybody",
    "whoever": r"whoever|whomever",
    "told": r"told|tells?|telling",
    "hear": r"hears?|heard|hearing",
    "anew": r"anew",
    "for ever": r"for ever",
    "mend": r"mend(?:s|ed|ing)?",
    "bury": r"bur(?:y|ies|ied|ying|ials?)",
    "hand back": r"hand(?:s|ed|ing)? (?:\w+ )?backs?",
    "letters": r"letters?",
    "room": r"rooms?",
    "in hand": r"(?:has|have|had) to hand|in hand",
    "falls to": r"falls? to",
    "had for acquired": r"(?:was|were|is|be|been) (?:not )?had|had back",
    "look as a noun": r"(?:a|the|each|every|next|last|one|second|another|per|first|by) looks?",
    "steal": r"steal(?:s|ing)?|stolen|stole",
}
"""Name of a row -> regular expression of whole words, ignoring case."""

ALLOWED = [
    re.compile(r"dead[ _-]?letters?", re.IGNORECASE),  # the word of the field
    re.compile(r"\bupper-?case letters?|lower-?case letters?|letters?(?:,| and| or) digits?", re.IGNORECASE),
    re.compile(r"\b(?:SMALL|CAPITAL|KATAKANA) LETTER\b"),  # names of Unicode
    re.compile(r'"nobody"'),  # the account of Unix
    re.compile(r"work[- ]stealing|work_stealing", re.IGNORECASE),  # named by seed 002
    re.compile(r"\bCM-\d{3}\.\d+.*"),  # rules quote the seeds
]
"""Removed from a line before it is searched: each is the right word where it stands."""

UNSEARCHED = {"docs/conformance.md", "docs/api.md"}
"""Written from other files that are searched."""

OLD_NAMES = "## Before the first release"
"""Heading of the part of the changelog that has to quote old names."""

_PATTERNS = {name: re.compile(rf"(?<![a-z])(?:{words})(?![a-z])", re.IGNORECASE) for name, words in WORDS.items()}
_TEST_NAME = re.compile(r"^\s*(?:async )?def (test_\w+)|^class (Test\w+)")


@dataclass(frozen=True, slots=True)
class Hit:
    """One word of the table at one place."""

    word: str
    path: str
    line: int
    text: str


def hits_in(text: str) -> list[str]:
    """Return the rows of the table that a line of text meets, once per occurrence."""
    for allowed in ALLOWED:
        text = allowed.sub(" ", text)
    text = text.replace("_", " ")
    return [name for name, pattern in _PATTERNS.items() for _ in pattern.finditer(text)]


def searched_files() -> Iterator[Path]:
    """Yield code, documents and tests in a fixed order."""
    yield from sorted(ROOT.glob("*.md"))
    for folder in ("docs", "examples", "src", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".md", ".py", ".lua", ".sql"} and str(path.relative_to(ROOT)) not in UNSEARCHED:
                yield path


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines to search: of tests only the name of the file and of each test."""
    text = path.read_text(encoding="utf-8")
    if path.is_relative_to(ROOT / "tests"):
        yield 0, path.stem
        for number, line in enumerate(text.splitlines(), 1):
            if match := _TEST_NAME.match(line):
                yield number, match[1] or match[2]
        return
    skipped = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## "):
            skipped = line == OLD_NAMES
        if not skipped:
            yield number, line


def search() -> list[Hit]:
    """Return every occurrence in the repository."""
    return [
        Hit(word, str(path.relative_to(ROOT)), number, line.strip())
        for path in searched_files()
        for number, line in lines_of(path)
        for word in hits_in(line)
    ]


def area_of(path: str) -> str:
    """Return the package or document that a path belongs to."""
    parts = path.split("/")
    if parts[0] == "src":
        return "src/" + parts[2].removesuffix(".py")
    return "tests" if parts[0] == "tests" else path


def main() -> int:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", metavar="WORD", help="print each line of one row (or 'all')")
    args = parser.parse_args()

    hits = search()
    if args.show:
        for hit in hits:
            if args.show in {hit.word, "all"}:
                print(f"{hit.path}:{hit.line}: [{hit.word}] {hit.text}")
        return 0
    for title, counts in (
        ("word", Counter(hit.word for hit in hits)),
        ("place", Counter(area_of(hit.path) for hit in hits)),
    ):
        print(f"{title:<50} count")
        for name, count in counts.most_common():
            print(f"{name:<50} {count:>5}")
        print()
    print(f"all: {len(hits)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
