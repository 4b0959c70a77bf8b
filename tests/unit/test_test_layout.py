"""Tests can be found: names of at most a dozen words, and unit tests in files that mirror the modules.

The two limits count what is left to rename. Lower them when the number falls; they are never raised.
"""

import re
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
