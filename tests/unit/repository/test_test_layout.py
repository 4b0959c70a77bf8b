"""Tests can be found and read: short names, unit tests at the place of their module, fixtures with types."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
SOURCE = TESTS.parent / "src" / "conquiet"
PLUGIN = SOURCE / "testing" / "pytest_plugin.py"
Function = ast.FunctionDef | ast.AsyncFunctionDef
UNTYPED = {"Any", "Iterator[Any]", "AsyncIterator[Any]"}
MAX_WORDS = 12
NAMED_IN_THE_LEDGER = {
    "a_handler_raises_rolls_back_and_leaves_its_message_pending",
    "comes_back_from_another_partition_is_found",
    "lies_above_an_open_delivery_is_acknowledged_one_by_one",
}
"""Without their first word. The ledger is only appended to."""


def mirrors(path: Path) -> bool:
    """Return whether a file is named after the module, script or folder at its place in the source."""
    relative = path.relative_to(TESTS / "unit")
    source = TESTS.parent if relative.parts[0] == "scripts" else SOURCE
    tested = source / relative.parent / path.stem.removeprefix("test_")
    return path.stem == "test_package" or tested.is_dir() or any(tested.parent.glob(f"{tested.name}.*"))


def test_no_test_name_is_longer_than_a_dozen_words() -> None:
    names = [
        (path.relative_to(TESTS), name)
        for path in sorted(TESTS.rglob("test_*.py"))
        for name in re.findall(r"^\s*(?:async )?def test_(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]

    too_long = [f"{path}: {name}" for path, name in names if len(name.split("_")) > MAX_WORDS]
    unnamed = [name for _, name in names if name.partition("_")[0] in {"what", "who", "whatever", "whoever"}]
    assert too_long == []
    assert {name.partition("_")[2] for name in unnamed} == NAMED_IN_THE_LEDGER, "name the thing: a message, a caller"
    assert len(names) > 1_000


def test_unit_tests_mirror_the_modules() -> None:
    """The tests of ``core/backoff.py`` are in ``core/test_backoff.py``, of a whole package in its ``test_package.py``.

    Documents, the deployment and the tests themselves have no module: their tests are in ``repository``.
    """
    files = sorted((TESTS / "unit").rglob("test_*.py"))

    assert len(files) > 200
    assert [
        str(path.relative_to(TESTS)) for path in files if path.parent.name != "repository" and not mirrors(path)
    ] == []


@cache
def functions(path: Path) -> list[Function]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def is_fixture(function: Function) -> bool:
    return any("fixture" in ast.unparse(decorator) for decorator in function.decorator_list)


def parametrised(function: Function) -> set[str]:
    """Return the names that the decorators of a test give values to."""
    constants = (node for decorator in function.decorator_list for node in ast.walk(decorator))
    texts = [node.value for node in constants if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {name.strip() for text in texts for name in text.split(",")}


@cache
def fixtures(path: Path) -> set[str]:
    return {function.name for function in functions(path) if is_fixture(function)}


@cache
def visible_fixtures(path: Path) -> set[str]:
    """Return the fixtures of a file, of each conftest above it, and of the plugin."""
    files = [path, *(folder / "conftest.py" for folder in path.parents if folder.is_relative_to(TESTS)), PLUGIN]
    return {name for file in files if file.exists() for name in fixtures(file)}


def test_fixtures_have_types_that_an_editor_can_follow() -> None:
    """A parametrised value may be ``Any``: JSON, or a value that the code must refuse."""
    untyped = [
        f"{path.relative_to(TESTS)}:{function.lineno}: {argument.arg}"
        for path in sorted(TESTS.rglob("*.py"))
        for function in functions(path)
        if function.name.startswith("test_") or is_fixture(function)
        for argument in function.args.args + function.args.kwonlyargs
        if argument.annotation is not None and ast.unparse(argument.annotation) == "Any"
        if argument.arg in visible_fixtures(path) - parametrised(function)
    ]
    returned = [
        f"{path.relative_to(TESTS)}:{function.lineno}: {function.name}"
        for path in sorted(TESTS.rglob("*.py"))
        for function in functions(path)
        if is_fixture(function) and ast.unparse(function.returns or ast.Name("Any")) in UNTYPED
    ]

    assert untyped == []
    assert returned == []


def test_importing_the_tests_patches_no_class_of_the_library() -> None:
    """A storm's worker patches what it watches. Its test imports constants from it, in the process of all tests."""
    code = (
        "import importlib, pathlib\n"
        "from conquiet.runtime.acknowledger import AckBatch\n"
        "from conquiet.rabbit.connection import Link\n"
        "from sqlalchemy.engine.default import DefaultDialect\n"
        "before = AckBatch.__init__, Link.ack, DefaultDialect.do_commit\n"
        "for file in sorted(pathlib.Path('tests/invariants').glob('*_zygote.py')):\n"
        "    importlib.import_module(f'tests.invariants.{file.stem}')\n"
        "assert before == (AckBatch.__init__, Link.ack, DefaultDialect.do_commit)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
