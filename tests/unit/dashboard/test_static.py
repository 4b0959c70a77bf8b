"""Templates, style and script: no inline code, no other host, small, and readable for weak eyes."""

import gzip
import re
from itertools import product
from pathlib import Path

import pytest

import conquiet.dashboard

HERE = Path(conquiet.dashboard.__file__).parent
TEMPLATES = sorted((HERE / "templates").glob("*.html"))
CSS = (HERE / "static" / "dashboard.css").read_text(encoding="utf-8")


def palettes() -> dict[str, dict[str, str]]:
    """Return the colours of the light and the dark theme, and of the dark theme that is chosen by hand."""
    blocks = re.findall(r"(:root[^{]*)\{([^}]*)\}", CSS)
    return {
        f"{number} {selector.strip()}": dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", body))
        for number, (selector, body) in enumerate(blocks)
    }


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2."""

    def luminance(colour: str) -> float:
        channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("name", palettes())
def test_text_has_the_contrast_of_wcag_aa(name: str) -> None:
    palette = palettes()[name]
    on_pages = product(("text", "dim", "link", "good", "warn", "bad", "info"), ("bg", "panel", "hover"))
    on_badges = [(kind, f"{kind}-bg") for kind in ("good", "warn", "bad", "info")]
    others = [("text", "idle-bg"), ("on-primary", "primary"), ("link", "bad-bg"), ("dim", "bad-bg")]
    others += [("text", f"{kind}-bg") for kind in ("good", "warn", "bad")]

    pairs = [*on_pages, *on_badges, *others]
    weak = {pair: round(contrast(palette[pair[0]], palette[pair[1]]), 2) for pair in pairs}
    assert {pair: ratio for pair, ratio in weak.items() if ratio < 4.5} == {}


def test_the_dark_theme_is_the_same_by_preference_and_by_hand() -> None:
    light, by_preference, by_hand = palettes().values()

    assert by_preference == by_hand
    assert light.keys() == by_hand.keys()


def test_contrast_is_that_of_the_standard() -> None:
    assert round(contrast("#000000", "#ffffff"), 1) == 21.0
    assert round(contrast("#777777", "#ffffff"), 2) == 4.48


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_have_no_inline_code_and_no_other_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:", text) == []
    assert re.findall(r"(?:src|href|action)=\"(?:https?:)?//", text) == []
    assert "| safe" not in text
    assert "autoescape" not in text


def test_all_assets_together_are_below_100_kb_compressed() -> None:
    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in (HERE / "static").iterdir()}

    assert sum(sizes.values()) < 100_000


def test_style_and_script_ask_no_other_host() -> None:
    for path in (HERE / "static").iterdir():
        found = re.findall(r"(?:https?:)?//[a-z][\w.-]+\.[a-z]+", path.read_text(encoding="utf-8"))
        assert [one for one in found if "www.w3.org" not in one] == []
