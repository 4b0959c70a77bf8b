"""The documentation site: every page is in the navigation, and links lead to pages."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import build_docs
import pytest

SITE = build_docs.ROOT / "zensical.toml"


def pages_of(nav: Any) -> Iterator[str]:
    """Yield the pages of a navigation, in its order."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for entry in nav.values():
            yield from pages_of(entry)
    else:
        for entry in nav:
            yield from pages_of(entry)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build_docs.Stage(folder).run()
    return folder


def test_every_page_is_in_the_navigation_once(staged: Path) -> None:
    """Decisions and files of the repository are reached by links from pages."""
    listed = list(pages_of(tomllib.loads(SITE.read_text(encoding="utf-8"))["project"]["nav"]))
    pages = {path.name for path in staged.glob("*.md")} | {"decisions/README.md"}

    assert sorted(listed) == sorted(pages), "add the page to nav in zensical.toml"


def test_a_link_to_a_file_outside_docs_leads_to_its_page(staged: Path) -> None:
    assert "](readme.md)" in (staged / "index.md").read_text(encoding="utf-8")
    assert (staged / "readme.md").read_text(encoding="utf-8").startswith("# conquiet")
    example = staged / "files" / "examples" / "fastapi_orders.py.md"
    assert "````python" in example.read_text(encoding="utf-8")


def test_a_link_inside_a_code_block_stays_as_it_is(tmp_path: Path) -> None:
    stage = build_docs.Stage(tmp_path)
    page = build_docs.DOCS / "index.md"
    fenced = "```\n[x](../README.md)\n```\n[y](../README.md)"

    parts = build_docs._CODE.split(fenced)

    assert "[x](../README.md)" in parts[1]
    assert stage._link(next(build_docs._LINK.finditer(parts[2])), page, build_docs._place(page)) == "](readme.md)"
