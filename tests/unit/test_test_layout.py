"""Tests can be found: names of at most a dozen words, and unit tests in files that mirror the modules.

The two limits count what is left to rename. Lower them when the number falls; they are never raised.
"""

import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
SOURCE = TESTS.parent / "src" / "conquiet"
MAX_WORDS = 12
LONG_NAMES_LIMIT = 54
UNMATCHED_FILES_LIMIT = 18


def has_module(package: Path, words: list[str]) -> bool:
    """Return whether a module or package is called as the first words: test_cron_dst.py belongs to cron.py."""
    candidates = {"_".join(words[:count]) for count in range(1, len(words) + 1)}
    return any(path.stem in candidates for path in package.rglob("*") if path.suffix == ".py" or path.is_dir())


def test_few_test_names_are_longer_than_a_dozen_words() -> None:
    names = [
        (path.relative_to(TESTS), name)
        for path in sorted(TESTS.rglob("test_*.py"))
        for name in re.findall(r"^\s*(?:async )?def test_(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]

    too_long = [f"{path}: {name}" for path, name in names if len(name.split("_")) > MAX_WORDS]
    assert len(too_long) <= LONG_NAMES_LIMIT, "\n".join(too_long)
    assert len(names) > 1_000


def test_unit_tests_mirror_the_modules() -> None:
    """test_package.py is for promises of a whole package, such as that it imports without the extras of others."""
    unmatched = [
        str(path.relative_to(TESTS))
        for path in sorted((TESTS / "unit").glob("*/test_*.py"))
        if (package := SOURCE / path.parent.name).is_dir()
        and path.stem != "test_package"
        and not has_module(package, path.stem.split("_")[1:])
    ]

    assert len(unmatched) <= UNMATCHED_FILES_LIMIT, "\n".join(unmatched)


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
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
