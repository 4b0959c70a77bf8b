"""Settings, errors, commands and drawings on the site match the code."""

import re
from pathlib import Path

import draw_diagrams
import pytest
import reference_docs

PLACES = [place for places in reference_docs.SETTINGS.values() for place in places]
KNOWN = {words.removeprefix("conquiet ") for words, _ in reference_docs.commands()}


@pytest.mark.parametrize("page", reference_docs.PAGES)
def test_the_page_is_up_to_date(page: str) -> None:
    written = (reference_docs.DOCS / page).read_text(encoding="utf-8")

    assert written == reference_docs.PAGES[page](), "run: python scripts/reference_docs.py"


@pytest.mark.parametrize("image", draw_diagrams.IMAGES_BY_NAME)
def test_the_drawing_is_up_to_date(image: str) -> None:
    written = (draw_diagrams.IMAGES / image).read_text(encoding="utf-8")

    assert written == draw_diagrams.IMAGES_BY_NAME[image](), "run: python scripts/draw_diagrams.py"


@pytest.mark.parametrize("place", PLACES)
def test_every_setting_has_a_meaning(place: str) -> None:
    _, rows = reference_docs.settings_of(place)

    assert rows
    assert [name for name, _, _, meaning in rows if not meaning] == []


def test_every_public_error_says_what_to_do() -> None:
    names = {name for _, name, _ in reference_docs.public_errors()}

    assert set(reference_docs.remedies()) == names


def test_the_advice_names_commands_that_exist() -> None:
    text = reference_docs.REMEDIES.read_text(encoding="utf-8")
    named = [re.split(r" --| …", one)[0] for one in re.findall(r"`conquiet ([^`]+)`", text)]

    assert [one for one in named if one not in KNOWN] == []


def test_every_command_is_on_the_page() -> None:
    page = (reference_docs.DOCS / "commands.md").read_text(encoding="utf-8")

    assert len(KNOWN) > 40
    assert [one for one in KNOWN if f"## conquiet {one}\n" not in page] == []


def test_the_layers_in_the_drawing_are_those_of_the_linter() -> None:
    image = (Path(draw_diagrams.IMAGES) / "architecture.svg").read_text(encoding="utf-8")

    assert [name for layer in draw_diagrams.layers() for name in layer if f">{name}</text>" not in image] == []
