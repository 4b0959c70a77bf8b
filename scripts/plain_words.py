"""Count words of a private dialect in code, documents and the names of tests, and mannered phrases in prose.

Readers of this field know "fix", "report", "release", "package". They do not know what a room, a letter or somebody who
is told stands for here. This script counts such words; a test keeps the number from growing.

    python scripts/plain_words.py                print the count of each word and of each file
    python scripts/plain_words.py --show WORD    print the lines that hold one word of the table
    python scripts/plain_words.py --phrases      print the phrases of each kind per 1,000 words of prose
    python scripts/plain_words.py --phrases --show KIND
    python scripts/plain_words.py --phrases --show all --below tests

Code outside docstrings, comments and texts counts as well: a name is read as often as a comment. Phrases are counted in
the docstrings and comments of ``src`` and in the documents, where libraries of this field have 0 to 0.3 of a kind per
1,000 words. A test compares each kind with its limit, and the number of all phrases in tests and scripts with another.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
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


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of mannered phrase.

    Attributes:
        pattern: Regular expression, ignoring case.
        limit: Most occurrences in the prose of ``src`` and of the documents.
    """

    pattern: str
    limit: int


_SENTENCE = r"(?:^|(?<=[.;:] ))"
_BE = r"\b(?:is|are|was|were|be|been)"

PHRASES = {
    # Clauses in place of nouns and verbs.
    "begins with what": Kind(r"^(?:what|how|whether|where|why|who|which|that)\b", 2),
    "headless what": Kind(
        r"(?:^|(?<=[.;:,] ))what (?:is|was|were|has|had|it|they|cannot|comes|dies|died|does|did|runs|ran"
        r"|fails|failed|follows|travels|waits|kills|raises|lies|stays|went|ends|others|we|the|an?)\b(?![^.]*\?)",
        1,
    ),
    "is what": Kind(rf"{_BE} what\b|\b(?:which|that) is (?:why|how|where|when)\b", 0),
    "one that, that of": Kind(
        r"\b(?:one that|those that|such a one|that of|those of)\b|\bthat one(?: (?:is|was|has|may)|[,.;])", 0
    ),
    "whose": Kind(r"\bwhose\b", 1),
    "becomes of": Kind(r"\bbec(?:omes?|ame) of\b", 0),
    "whatever": Kind(r"\b(?:whatever|wherever|whichever|however (?:deep|many|large|long|often|it))\b", 0),
    # Actors that are not named, and things that act like people.
    "impersonal": Kind(rf"\b(?:someone|anyone|everyone|oneself|no one)\b|{_SENTENCE}who \w+s\b(?![^.]*\?)", 0),
    "ask, answer": Kind(r"\b(?:ask|answer)(?:s|ed|ing)?\b(?!:)", 2),
    "says, said": Kind(r"\b(?:says?|said)\b", 0),
    "look at, look for": Kind(r"\blook(?:s|ed|ing)? (?:at|for|into|back|again)\b", 0),
    "by itself": Kind(r"\bby (?:itself|themselves|ourselves)\b", 0),
    "the caller's": Kind(r"\b(?:stays?|is|are|be) (?:the (?:caller|handler|server)'s|ours|theirs)\b(?! error)", 2),
    "goes on": Kind(r"\b(?:go|goes|going|went|gone) on\b", 0),
    "comes again": Kind(
        r"\b(?:come|comes|came|coming) (?:again|back|too late|along)\b|\b(?:brings?|brought|takes?) (?:\w+ )?along\b", 0
    ),
    "is away": Kind(rf"{_BE} (?:away|at work|at hand|at an end)\b", 0),
    "stands": Kind(r"\b(?:stands?(?!-in)|stood)\b", 0),
    "in hand": Kind(r"\bin (?:\S+ )?hands\b", 0),
    # Inversions, negations and words of another century.
    "is no": Kind(rf"(?<!there ){_BE} no (?!longer\b|more\b|less\b|next\b|transaction\b)\w+", 3),
    "is to be": Kind(
        r"\b(?:is|are|was|were) (?:not )?to (?:be|become|stay|have|do|go|come|end|suffer|run|happen|wait)\b", 0
    ),
    "is had, is let": Kind(rf"{_BE} (?:not )?(?:had|let|made to)\b", 0),
    "taken for": Kind(rf"{_BE} taken for\b|\btakes? (?:it|them|each|two \w+|an? (?!lock)\w+) for (?:an?|the|one)\b", 0),
    "not, but": Kind(rf"{_SENTENCE}not [^.;:]{{1,60}} but\b", 0),
    "inverted": Kind(rf"{_SENTENCE}(?!moved|unknown)[a-z]+(?:ed|en|wn|pt) (?:is|are|was|were) (?:the|an?|\w+s)\b", 0),
    "nothing but": Kind(r"\b(?:nothing|none|no \w+) but\b|(?<=[a-z(])(?<!,) but for\b|\(but for\b", 1),
    "also if": Kind(r"\balso (?:if|when|while|where|after|during|without)\b", 0),
    "nevertheless": Kind(
        r"\b(?:nevertheless|nonetheless|none the less|(?<!are )all the same(?! to)|in vain|hence|thereby|whereupon"
        r"|thereof|lest|for good|as ever)\b",
        0,
    ),
    # Idioms that mean something else at first reading.
    "at once": Kind(r"\bat once\b", 0),
    "of its own": Kind(r"\bof (?:its|their|our|your|his) own\b", 2),
    "beside": Kind(r"\bbesides?\b", 0),
    "in a row": Kind(r"\bin a row\b", 0),
    "so many": Kind(r"\bso (?:many|much|long|few|often)\b(?! that\b)(?! as\b)", 0),
}
"""Kinds of phrases that make a reader read twice. Some hits are right where they are, so a limit is the number that
remains after reading all hits. Lower it when the number falls; it is never raised. Measured in this repository and in
dramatiq, procrastinate and docket, which have 0 to 0.3 of a kind per 1,000 words."""

CODE_ONLY = {"begins with what"}
"""Kinds that are counted in docstrings and comments only: a paragraph may begin with "Where"."""

FIELD_WORDS = re.compile(r"\bASK(?:ING)?\b")
"""Words of a protocol, removed before phrases are searched."""

GENERATED = {"api.md", "commands.md", "conformance.md", "errors.md", "metrics.md", "reliability.md", "settings.md"}
"""Documents that are written from docstrings and from the ledger."""

ALLOWED = [
    re.compile(r"dead[ _-]?letters?", re.IGNORECASE),  # the word of the field
    re.compile(r"\bupper-?case letters?|lower-?case letters?|letters?(?:,| and| or) digits?", re.IGNORECASE),
    re.compile(r"\b(?:SMALL|CAPITAL|KATAKANA) LETTER\b"),  # names of Unicode
    re.compile(r'"nobody"'),  # the account of Unix
    re.compile(r"work[- ]stealing|work_stealing", re.IGNORECASE),  # named by seed 002
    re.compile(r"\bCM-\d{3}\.\d+.*"),  # rules quote the seeds
]
"""Removed from a line before it is searched: each is the right word at its place."""

UNSEARCHED = {"docs/conformance.md", "docs/api.md"}
"""Written from other files that are searched."""

OLD_NAMES = "## Before the first release"
"""Heading of the part of the changelog that has to quote old names."""

_PATTERNS = {name: re.compile(rf"(?<![a-z])(?:{words})(?![a-z])", re.IGNORECASE) for name, words in WORDS.items()}
_KINDS = {name: re.compile(kind.pattern, re.IGNORECASE) for name, kind in PHRASES.items()}
_AROUND = 60
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


def prose_of_code(source: str) -> Iterator[tuple[int, str]]:
    """Yield each docstring, help text and block of comments on one line, with the line on which it begins."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "help" and isinstance(node.value, ast.Constant):
            yield node.value.lineno, " ".join(str(node.value.value).split())
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield statement.lineno, " ".join(str(statement.value.value).split())
    block: list[str] = []
    begun = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != last + 1:
                yield begun, " ".join(block)
                block = []
            begun = begun if block else token.start[0]
            last = token.start[0]
            block.append(token.string.lstrip("# "))
    if block:
        yield begun, " ".join(block)


def prose_of_document(text: str) -> Iterator[tuple[int, str]]:
    """Yield each paragraph outside code blocks on one line, with the line on which it begins."""
    number = 1
    for part in re.split(r"(```.*?```|\n\n+)", text, flags=re.DOTALL):
        if part.strip() and not part.startswith("```"):
            yield number, " ".join(part.split())
        number += part.count("\n")


def prose_below(*folders: str) -> Iterator[tuple[str, int, str]]:
    """Yield the docstrings, help texts and comments of these folders: path, line, text."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for number, text in prose_of_code(path.read_text(encoding="utf-8")):
                yield str(path.relative_to(ROOT)), number, text


def prose() -> Iterator[tuple[str, int, str]]:
    """Yield the prose of ``src`` and of the documents, in which each kind of phrase has its limit."""
    yield from prose_below("src")
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]:
        if path.name not in GENERATED:
            document = "\n".join(line for _, line in lines_of(path))
            for number, text in prose_of_document(document):
                yield str(path.relative_to(ROOT)), number, text


def phrases_in(text: str, *, is_code: bool) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield kind and place of each phrase of one docstring, comment or paragraph."""
    text = FIELD_WORDS.sub("", text)
    for kind, pattern in _KINDS.items():
        if is_code or kind not in CODE_ONLY:
            for match in pattern.finditer(text):
                yield kind, match


def search_phrases(texts: Iterable[tuple[str, int, str]]) -> tuple[list[Hit], int]:
    """Return every phrase in the prose, and the number of words of the prose."""
    hits, words = [], 0
    for path, number, text in texts:
        words += len(text.split())
        for kind, match in phrases_in(text, is_code=path.endswith(".py")):
            around = match.string[max(0, match.start() - _AROUND) : match.end() + _AROUND]
            hits.append(Hit(kind, path, number, around))
    return hits, words


def per_1000_words(hits: list[Hit], words: int) -> dict[str, float]:
    """Return how often each kind of phrase occurs in 1,000 words of prose."""
    counts = Counter(hit.word for hit in hits)
    return {kind: counts[kind] * 1_000 / words for kind in PHRASES}


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
    parser.add_argument("--phrases", action="store_true", help="count phrases in prose instead of words")
    parser.add_argument("--below", metavar="FOLDER", nargs="*", help="count phrases in the code of these folders")
    args = parser.parse_args()

    hits, words = search_phrases(prose_below(*args.below) if args.below else prose()) if args.phrases else (search(), 0)
    if args.show:
        for hit in hits:
            if args.show in {hit.word, "all"}:
                print(f"{hit.path}:{hit.line}: [{hit.word}] {hit.text}")
        return 0
    if args.phrases:
        counted = Counter(hit.word for hit in hits)
        print(f"{'kind':<20} {'count':>6} {'limit':>6} {'per 1,000 words':>16}")
        for kind, share in per_1000_words(hits, words).items():
            print(f"{kind:<20} {counted[kind]:>6} {PHRASES[kind].limit:>6} {share:>16.2f}")
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
