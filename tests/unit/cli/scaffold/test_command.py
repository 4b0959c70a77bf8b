"""The pages of the framework integrations and the tutorial show the code that ``conquiet new`` writes."""

import re
from pathlib import Path

import pytest

from conquiet.cli.scaffold.command import write_project

DOCS = Path(__file__).parents[4] / "docs"


@pytest.mark.parametrize(
    ("page", "kind"), [("fastapi", "fastapi"), ("flask", "flask"), ("django", "django"), ("tutorial", "plain")]
)
def test_the_code_of_a_page_is_what_a_new_project_holds(page: str, kind: str, tmp_path: Path) -> None:
    """The projects are run by tests/acceptance/test_new_and_dev.py."""
    files = [path.read_text() for path in write_project("shop", kind, tmp_path / "shop") if path.suffix == ".py"]

    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)

    assert blocks
    assert [block for block in blocks if block not in files] == []


@pytest.mark.parametrize("kind", ["plain", "fastapi", "flask", "django"])
def test_a_new_project_has_at_most_60_lines_of_application(kind: str, tmp_path: Path) -> None:
    """Settings and tests not counted; blank lines neither."""
    paths = write_project("shop", kind, tmp_path / "shop")
    counted = [path for path in paths if path.name in {"shop.py", "jobs.py", "urls.py", "models.py", "worker.py"}]

    assert sum(bool(line.strip()) for path in counted for line in path.read_text().splitlines()) <= 60
