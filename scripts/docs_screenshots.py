"""Look at the documentation site in Chromium: pictures of eight pages at two widths, and checks of what they need.

    make docs && python scripts/docs_screenshots.py [--into FOLDER]

Serves build/docs on the loopback address. Fails if a page is wider than its window, has a table that must be scrolled
sideways on a phone, asks another host for anything, reports an error to the console, has a code block without colours
or without a copy button, or if a copied command has a prompt, the search finds nothing, or the switch between light and
dark does nothing.
"""

import argparse
import functools
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "docs"
IMAGES = ROOT / "docs" / "img" / "site"
PAGES = (
    "index.html",
    "tutorial/",
    "sqlalchemy/",
    "moving-here/",
    "troubleshooting/",
    "guarantees/",
    "api/",
    "settings/",
)
WIDTHS: tuple[tuple[int, int, Literal["light", "dark"]], ...] = ((1280, 900, "light"), (390, 844, "dark"))
PHONE = WIDTHS[1][0]
SLOW_MS = 120_000  # a busy machine draws the page of all names slowly


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the overridden method
        """Write nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on the loopback address; yield its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def look_at(page: "Page", name: str) -> list[str]:
    """Return what is wrong with the page that is shown."""
    wrong = []
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    if width[0] > width[1]:
        wrong.append(f"{name}: {width[0]} px wide in a window of {width[1]}")
    frames: list[str] = page.evaluate(
        """[...document.querySelectorAll('.md-content table')].filter(table => {
            const frame = table.closest('.md-typeset__scrollwrap') || table;
            return Math.max(frame.scrollWidth, table.scrollWidth) > Math.min(frame.clientWidth, innerWidth);
        }).map(table => table.innerText.slice(0, 40))"""
    )
    if width[1] == PHONE:
        wrong += [f"{name}: a table must be scrolled sideways: {text!r}" for text in frames]
    blocks: list[dict[str, Any]] = page.evaluate(
        """[...document.querySelectorAll('.md-content pre')].map(block => ({
            colours: new Set([...block.querySelectorAll('span[class]')].map(one => getComputedStyle(one).color)).size,
            language: /language-(python|console|sql|yaml)/.test(block.parentElement.className),
            copy: block.parentElement.querySelectorAll('.md-clipboard, .md-code__button').length,
        }))"""
    )
    for number, block in enumerate(blocks, 1):
        if block["language"] and block["colours"] < 2:  # noqa: PLR2004 - a keyword and the rest
            wrong.append(f"{name}: code block {number} is not highlighted")
        if not block["copy"]:
            wrong.append(f"{name}: code block {number} has no copy button")
    return wrong


def search(page: "Page", words: str, found: str) -> list[str]:
    """Search as a reader does, and press Enter at the first result; return what is wrong."""
    page.keyboard.press("Control+k")
    page.wait_for_timeout(1_000)  # the dialogue opens and reads its index
    page.keyboard.type(words, delay=30)
    page.wait_for_timeout(3_000)
    page.keyboard.press("Enter")
    page.wait_for_timeout(2_000)
    return [] if found in page.url else [f"the search for {words!r} led to {page.url}"]


def copy(page: "Page") -> list[str]:
    """Press the copy button of the first commands; return what is wrong with the copied text."""
    page.locator(".language-console pre").first.hover()
    page.locator(".language-console button").first.click()
    copied: str = page.evaluate("navigator.clipboard.readText()")
    good = copied and not any(line.startswith("$") for line in copied.splitlines())
    return [] if good else [f"the copied commands are {copied!r}"]


class Complaints:
    """The faults, page by page."""

    def __init__(self, url: str) -> None:
        self.all: list[str] = []
        self._url = url

    def listen(self, page: "Page") -> None:
        """Note errors of the console, and requests to another host."""
        page.on("console", lambda line: self.all.append(f"console: {line.text}") if line.type == "error" else None)
        page.on("request", lambda asked: self._note(asked.url))

    def _note(self, url: str) -> None:
        if not url.startswith((self._url, "data:", "blob:")):
            self.all.append(f"asks another host: {url}")


def main() -> int:
    """Take the pictures; return 1 if something is wrong."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=IMAGES)
    into: Path = parser.parse_args().into
    into.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with served(SITE) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        wrong = Complaints(url)
        for width, height, scheme in WIDTHS:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            context.grant_permissions(["clipboard-read", "clipboard-write"])
            page = context.new_page()
            page.set_default_timeout(SLOW_MS)
            wrong.listen(page)
            for name in PAGES:
                page.goto(url + name)
                page.wait_for_load_state("networkidle")
                wrong.all += look_at(page, f"{name} at {width}")
                short = name.removesuffix("/").removesuffix(".html")
                if name == "tutorial/":
                    wrong.all += copy(page)
                page.screenshot(path=str(into / f"{short}-{width}.png"))
            before = page.evaluate("getComputedStyle(document.body).backgroundColor")
            page.locator("label[for^=__palette]:visible").first.click()
            page.wait_for_timeout(300)
            if page.evaluate("getComputedStyle(document.body).backgroundColor") == before:
                wrong.all.append(f"the switch between light and dark does nothing at {width}")
            if (width, height, scheme) == WIDTHS[0]:
                wrong.all += search(page, "visibility timeout", "/moving-here/")
            context.close()
        browser.close()
    print("\n".join(wrong.all) or f"{len(PAGES) * len(WIDTHS)} pictures in {into.name}")
    return 1 if wrong.all else 0


if __name__ == "__main__":
    sys.exit(main())
