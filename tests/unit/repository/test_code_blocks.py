"""Every block of code in the documents is run by a test, checked here, or marked as a fragment with its reason.

A mark is on the line before the block: ``<!-- fragment: reason -->``. Blocks without a language are drawings and
output. The pages that scripts write (API, commands) are checked by the tests of these scripts.
"""

import ast
import configparser
import json
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from typer.main import get_command

from conquiet.cli.app import app

ROOT = Path(__file__).resolve().parents[3]
GENERATED = {"api.md", "commands.md"}
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md")),
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in GENERATED),
]
RUN_BY = {
    "README.md": "tests/acceptance/test_readme.py",
    "app.md": "tests/integration/app/test_documentation.py",
    "batches.md": "tests/integration/batches/test_documentation.py",
    "dashboard.md": "tests/unit/dashboard/test_package.py",
    "django.md": "tests/unit/cli/scaffold/test_command.py",
    "fastapi.md": "tests/unit/cli/scaffold/test_command.py",
    "flask.md": "tests/unit/cli/scaffold/test_command.py",
    "moving-a-loop.md": "tests/integration/app/test_moving_a_loop.py",
    "observability.md": "tests/integration/otel/test_observability_page.py",
    "ordering.md": "tests/integration/processor/test_ordering_page.py",
    "programs.md": "tests/acceptance/test_readme.py",
    "tutorial.md": "tests/unit/cli/scaffold/test_command.py",
} | dict.fromkeys(
    ("exactly-once.md", "housekeeping.md", "jobs.md", "locking.md", "moving-here.md", "processor.md", "queue.md",
     "rabbit.md", "rabbit-from-scratch.md", "scheduler.md", "sqlalchemy.md", "tables.md", "testing.md"),
    "tests/integration/test_documentation_blocks.py",
)  # fmt: skip
"""The test that runs the Python blocks of a page which are not marked."""

_BLOCK = re.compile(
    r"(?:<!-- fragment: (?P<reason>[^\n]*?) -->\n)?^```(?P<language>[^\n]*)\n(?P<code>.*?)^```",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    code: str
    reason: str | None

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("code"))
            language = (match["language"].split() or [""])[0]
            if language not in {"", "text"}:
                found.append(Block(page, line, language, match["code"], match["reason"]))
    return found


BLOCKS = blocks()
PYTHON = [block for block in BLOCKS if block.language == "python"]


def test_a_python_block_is_run_or_says_why_it_is_a_fragment() -> None:
    assert len(PYTHON) > 50
    unmarked = [block.place for block in PYTHON if block.reason is None and block.page.name not in RUN_BY]
    assert unmarked == [], "name the test that runs it in RUN_BY, or mark it: <!-- fragment: reason -->"


def test_reasons_are_stated() -> None:
    assert [block.place for block in BLOCKS if block.reason is not None and len(block.reason) < 10] == []


@pytest.mark.parametrize(("page", "file"), RUN_BY.items(), ids=RUN_BY.keys())
def test_the_named_test_reads_the_page(page: str, file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")

    assert page in text or f'"{page.removesuffix(".md")}"' in text or f"'{page.removesuffix('.md')}'" in text


@pytest.mark.parametrize("block", PYTHON, ids=[block.place for block in PYTHON])
def test_a_python_block_compiles_and_imports_what_exists(block: Block) -> None:
    """A fragment, too: a name that was renamed must not stay on a page."""
    tree = compile(block.code, block.place, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "conquiet":
            module = import_module(node.module or "")
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []


def known_commands() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    waiting: list[tuple[str, Any]] = [("", get_command(app))]
    while waiting:
        words, command = waiting.pop()
        found[words] = {word for option in command.params for word in (*option.opts, *option.secondary_opts)}
        waiting += [(f"{words} {name}".strip(), below) for name, below in getattr(command, "commands", {}).items()]
    return found


def simple_commands(line: str) -> list[list[str]]:
    """Return the words of each call of conquiet in a line of the shell, without variables that are set before it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
    lexer.commenters = "#"
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;"):
            found.append([])
        elif found[-1] or not re.match(r"^[A-Z_]+=", word):
            found[-1].append(word)
    return [words for words in found if words and words[0] == "conquiet"]


COMMANDS = known_commands()
SHELL = [block for block in BLOCKS if block.language in {"console", "bash", "sh"} and block.reason is None]


@pytest.mark.parametrize("block", SHELL, ids=[block.place for block in SHELL])
def test_commands_and_options_of_a_shell_block_exist(block: Block) -> None:
    for line in block.code.splitlines():
        for words in simple_commands(line.removeprefix("$ ")):
            name = next(
                (" ".join(words[1:end]) for end in (3, 2) if " ".join(words[1:end]) in COMMANDS and len(words) >= end),
                None,
            )
            assert name, f"{block.place}: there is no command {line!r}"
            options = {word.partition("=")[0] for word in words if word.startswith("-") and len(word) > 1}
            assert options <= COMMANDS[name] | {"--help", "--debug"}, line


def test_data_blocks_can_be_read() -> None:
    for block in BLOCKS:
        if block.language == "json":
            json.loads(block.code)
        elif block.language in {"yaml", "yml"}:
            yaml.safe_load(block.code)
        elif block.language == "ini":
            configparser.ConfigParser(strict=False).read_string(block.code)


def test_a_block_of_another_language_is_known_to_a_test() -> None:
    checked = {"python", "console", "bash", "sh", "json", "yaml", "yml", "ini"}
    sql = {"tables.md"}  # tests/integration/transactional/test_documented_rows.py runs them

    others = [block.place for block in BLOCKS if block.language not in checked and block.reason is None]
    assert [place for place in others if place.partition(":")[0] not in sql] == []
