"""Every ``conquiet …`` command in the source, the dashboard, the documents and ``deploy`` parses with the command line.

Nothing is executed. A text that only names a command (``conquiet db init``) or one of its options is checked for these.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer
from typer.main import get_command

from conquiet.cli.app import app

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "src" / "conquiet"
GENERATED = {"api.md", "conformance.md"}
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md")),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name not in GENERATED),
    *sorted((SOURCE / "cli" / "scaffold" / "templates").rglob("*.txt")),
]

COMMAND = re.compile(r"(?<![\w./-])conquiet(?: [^\n`]+|$)", re.MULTILINE)
CODE = re.compile(r"`+([^`\n]*conquiet [^`\n]*)`+|^(?:    |\$ )?(conquiet [^`\n]*)$", re.MULTILINE)
WORD = re.compile(r"""'([^']*)'(?=[\s.,;:)]|$)|([^\s'"]+)""")
END = re.compile(r"[;|&#(…→]|[.,:)?]+$")
ROOT_COMMAND: Final[Any] = get_command(app)
PLACEHOLDERS = {"ACTION": "cancel", "S": "1", "N": "1", "SEQ": "1", "P": "waiting"}
PROSE = re.compile(r"[a-z]+")
UsageError: Final[Any] = typer.BadParameter.__base__  # typer carries a copy of click, and does not export it


def python_texts(path: Path) -> Iterator[str]:
    """Yield the strings of a module; a formatted value is 1, which fits an argument of any type."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "1" for part in node.values)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield re.sub(r"\{\w+\}", "1", node.value)


def template_texts(path: Path) -> Iterator[str]:
    text = re.sub(r'" ~ \w+ ~ "|\{\{[^}]*\}\}', "1", path.read_text(encoding="utf-8"))
    yield from re.split(r'[<>"]', text)


def deploy_texts(path: Path) -> Iterator[str]:
    yield from re.sub(r"\{\{[^}]*\}\}", "1", path.read_text(encoding="utf-8")).splitlines()


def page_texts(path: Path) -> Iterator[str]:
    for match in CODE.finditer(path.read_text(encoding="utf-8")):
        yield match[1] or match[2]


def printed_commands() -> Iterator[tuple[str, str, bool]]:
    """Yield the place of each command, its text, and whether the text holds only the command."""
    for kind, paths in {
        python_texts: SOURCE.rglob("*.py"),
        template_texts: SOURCE.glob("dashboard/templates/*.html"),
        page_texts: PAGES,
        deploy_texts: (path for path in sorted((ROOT / "deploy").rglob("*.*")) if path.is_file()),
    }.items():
        for path in paths:
            for text in kind(path):
                for found in COMMAND.finditer(text):
                    alone = kind is page_texts or text[: found.start()].endswith("    ")
                    yield str(path.relative_to(ROOT)), found[0], alone


def command_of(words: list[str]) -> tuple[Any, list[str]] | None:
    """Return the command that the words call, with the words after it; None if they call none."""
    command = ROOT_COMMAND
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    return None if command.name == "conquiet" else (command, words)


def words_of(text: str) -> list[str]:
    """Return the words of the command at the beginning of the text. It ends with its clause, or at a stray quote."""
    words: list[str] = []
    at = 0
    while match := WORD.match(text, at):
        if match[1] is not None:
            words.append(match[1])
        elif match[2].startswith("#"):
            break
        else:
            word = END.split(match[2], maxsplit=1)[0]
            words += [PLACEHOLDERS.get(word, word)] if word else []
            if word != match[2]:
                break
        at = match.end() + len(text[match.end() :]) - len(text[match.end() :].lstrip(" "))
        if at == match.end():
            break
    return words[1:]


def parse(command: Any, words: list[str]) -> str | None:
    """Return why the words do not parse. Where they begin with an option, the arguments were left out."""
    if not words or hasattr(command, "commands"):
        return None
    if all(word.startswith("-") for word in words):
        unknown = {word.partition("=")[0] for word in words} - options_of(command) - {"--help", "--debug"}
        return f"there is no option {sorted(unknown)}" if unknown else None
    fault = ""
    for missing in range(4 if words[0].startswith("-") else 1):
        try:
            command.make_context(command.name, ["1"] * missing + words)
        except typer.Exit:  # of --help
            return None
        except UsageError as error:
            fault = fault or error.format_message()
        else:
            return None
    return fault


def options_of(command: Any) -> set[str]:
    own = {word for option in command.params for word in (*option.opts, *option.secondary_opts)}
    return own.union(*map(options_of, getattr(command, "commands", {}).values()))


def fault_of(text: str, *, alone: bool = False) -> str | None:
    """Return why the command at the beginning of the text does not parse.

    Unless the text holds only the command, lower-case words at its end may belong to the sentence: they are dropped
    until it parses.
    """
    found = command_of(words_of(text))
    if found is None:
        return None
    command, words = found
    if words and hasattr(command, "commands") and not set(words) <= options_of(command):
        return f"{command.name} has no command {words[0]!r}"
    fault = parse(command, words)
    while fault and not alone and words and PROSE.fullmatch(words[-1]):
        words = words[:-1]
        if parse(command, words) is None:
            return None
    return fault


def test_every_printed_command_parses() -> None:
    commands = sorted(set(printed_commands()))
    faults = [f"{place}: {text}: {fault}" for place, text, alone in commands if (fault := fault_of(text, alone=alone))]

    assert len(commands) > 300
    assert faults == []


@pytest.mark.parametrize(
    ("text", "parses"),
    [
        ("conquiet jobs list orders --phase delayed", True),
        ("conquiet jobs list orders --state delayed", False),
        ("conquiet jobs list orders --phase asleep", False),
        ("conquiet emit STREAM EVENT '{}'", False),
        ("conquiet pending 1", False),
        ("conquiet jobs lost orders", False),
        ("conquiet db migrate (it is safe while workers run)", True),
        ("conquiet rabbit run consumes a queue that exists.", True),
        ("conquiet is tested with 6.2 to 8", True),
        ("conquiet reclaim --reset-delivery", False),
        ("conquiet worker --health-port 8080", True),
        ("conquiet emit order.paid '{\"cents\": 500}' --stream shop", True),
        ("conquiet db init' makes the table", True),
    ],
)
def test_the_check_finds_what_does_not_parse(text: str, *, parses: bool) -> None:
    assert (fault_of(text) is None) is parses
