"""Draw the pictures of docs/img: message, crash-points, not-handled and architecture.

    python scripts/draw_diagrams.py            write them
    python scripts/draw_diagrams.py --check    exit with 1 if one is out of date

The layers of the architecture are read from the import-linter's contract. The pictures have a light ground of their
own, so that they can be read on a dark page too, and name no font that a browser would have to fetch.
"""

import re
import sys
import tomllib
from html import escape
from pathlib import Path

import generated

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "img"

INK, SOFT, GROUND, LINE = "#1f2430", "#5b6270", "#ffffff", "#8a93a3"
BLUE, GREEN, AMBER, RED = "#e3edfc", "#e1f3e4", "#fdf0d5", "#fbe3e1"
CHAR = 7.2
"""Width of a character at 13 px, a little more than most fonts need."""


class Drawing:
    """An SVG that grows by boxes, lines and texts.

    Args:
        width: In pixels.
        height: In pixels.
        title: Read by screen readers.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._title = title
        self._parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, text: str, fill: str, note: str = "") -> None:
        """Draw a rounded box with a text and a smaller one below it."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="{LINE}"/>'
        )
        middle = x + width / 2
        self.text(middle, y + height / 2 + (-2 if note else 5), text, bold=True)
        if note:
            self.text(middle, y + height / 2 + 15, note, size=11, colour=SOFT)

    def panel(self, x: float, y: float, width: float, height: float, fill: str) -> None:
        """Draw a coloured ground for texts."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="none"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 13,
        colour: str = INK,
        bold: bool = False,
        at: str = "middle",
    ) -> None:
        """Write a text."""
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{at}"{weight}>'
            f"{escape(text)}</text>"
        )

    def arrow(self, *points: tuple[float, float], dashed: bool = False, colour: str = SOFT) -> None:
        """Draw a line through the points with an arrowhead at its end."""
        path = " ".join(f"{'L' if index else 'M'}{x:g} {y:g}" for index, (x, y) in enumerate(points))
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash} marker-end="url(#head)"/>'
        )

    def mark(self, x: float, y: float, letter: str) -> None:
        """Draw a point at which a process can be killed."""
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="11" fill="{RED}" stroke="#c9493d"/>')
        self.text(x, y + 5, letter, bold=True, colour="#9c2b20")

    def render(self) -> str:
        """Return the file."""
        width, height = self._size
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif">\n'
            f"<title>{escape(self._title)}</title>\n"
            f'<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{SOFT}"/></marker></defs>\n'
            f'<rect width="{width}" height="{height}" rx="10" fill="{GROUND}"/>\n'
            + "\n".join(self._parts)
            + "\n</svg>\n"
        )


def message() -> str:
    """Return the way of a message from a request to its effect."""
    drawing = Drawing(960, 330, "The way of a message: request, outbox, relay, stream, worker, inbox, acknowledgement")
    drawing.text(24, 34, "the request's transaction", at="start", colour=SOFT, size=12)
    drawing.box(24, 44, 150, 52, "your rows", BLUE, "INSERT, UPDATE")
    drawing.box(24, 104, 150, 52, "outbox row", BLUE, "the same COMMIT")
    drawing.box(248, 104, 120, 52, "relay", AMBER, "at least once")
    drawing.box(442, 104, 150, 52, "stream or queue", AMBER, "Redis, RabbitMQ")
    drawing.box(666, 104, 120, 52, "worker", GREEN, "lease renewed")
    drawing.arrow((174, 130), (246, 130))
    drawing.arrow((368, 130), (440, 130))
    drawing.arrow((592, 130), (664, 130))
    drawing.text(629, 121, "read", size=11, colour=SOFT)
    drawing.text(668, 218, "the handler's transaction", at="start", colour=SOFT, size=12)
    drawing.box(600, 228, 110, 52, "inbox row", BLUE, "first")
    drawing.box(718, 228, 110, 52, "your rows", BLUE, "the handler")
    drawing.box(836, 228, 100, 52, "COMMIT", GREEN)
    drawing.arrow((726, 156), (726, 200), (655, 200), (655, 226))
    drawing.arrow((886, 228), (886, 130), (788, 130))
    drawing.text(896, 150, "then", size=11, colour=SOFT, at="start")
    drawing.arrow((726, 104), (726, 70), (517, 70), (517, 102))
    drawing.text(621, 62, "acknowledge, only after COMMIT", size=12, colour=INK)
    drawing.box(248, 228, 120, 52, "delayed set", AMBER, "retry, delay")
    drawing.box(442, 228, 120, 52, "dead letters", RED, "DLQ")
    drawing.arrow((666, 148), (640, 148), (640, 190), (502, 190), (502, 226), dashed=True)
    drawing.arrow((502, 190), (308, 190), (308, 226), dashed=True)
    drawing.arrow((338, 228), (338, 176), (470, 176), (470, 158), dashed=True)
    drawing.text(
        24, 312, "A second delivery finds the inbox row, does nothing and is acknowledged.", at="start", size=12
    )
    return drawing.render()


STEPS = (("read", AMBER), ("BEGIN", BLUE), ("INSERT inbox", BLUE), ("your statements", BLUE), ("COMMIT", GREEN),
    ("ack", GREEN))  # fmt: skip
ENDINGS = (
    (0, 3, ("rolled back, with the inbox row;", "the next run inserts the row and does the work"), RED),
    (4, 4, ("committed and pending:", "the next run finds the row", "and acknowledges"), AMBER),
    (5, 5, ("committed and", "acknowledged"), GREEN),
)
"""First and last kill point, the state at the next run, colour."""


def crash_points() -> str:
    """Return every place where a worker can die, and what the next run does."""
    drawing = Drawing(960, 210, "Crash points of a worker, and what the next run finds")
    marks: list[float] = []
    x = 20.0
    for index, (name, fill) in enumerate(STEPS):
        width = len(name) * CHAR + (26, 26, 26, 26, 66, 130)[index]  # room for the texts below
        drawing.box(x, 34, width, 40, name, fill)
        marks.append(x + width + 22)
        drawing.mark(marks[-1], 54, "ABCDEF"[index])
        x += width + 44
    for first, last, lines, fill in ENDINGS:
        left, right = (
            (marks[first] - 16, marks[last] + 16) if first != last else (marks[first] - 100, marks[first] + 60)
        )
        drawing.panel(left, 92, right - left, 24 + 20 * len(lines), fill)
        for row, line in enumerate(lines):
            drawing.text((left + right) / 2, 116 + row * 20, line, size=12)
    return drawing.render()


QUESTIONS = (
    (
        "1. Is it in the stream?",
        "conquiet inspect orders",
        "no",
        ("2. Outbox: does a relay run?", "conquiet outbox list"),
    ),
    (
        "3. Does a worker read the group?",
        "no lag, a live consumer",
        "no",
        ("start, resume or scale it", "conquiet worker"),
    ),
    ("4. Is it pending?", "conquiet pending orders", "yes", ("it runs, or its worker died:", "claimed after a minute")),
    ("5. Is it dead?", "conquiet dead-letters causes orders", "yes", ("repair the cause, then", "dead-letters replay")),
    ("6. Did the inbox know its id?", "conquiet db status", "yes", ("it had its effect before", "")),
)
"""Question, its command, the result that ends the search, and the remedy."""


def not_handled() -> str:
    """Return the decision tree of docs/troubleshooting.md."""
    drawing = Drawing(760, 30 + 84 * len(QUESTIONS), "Why is my message not handled? Questions in order")
    for row, (question, command, answer, (first, second)) in enumerate(QUESTIONS):
        y = 20 + 84 * row
        drawing.box(24, y, 330, 54, question, BLUE, command)
        drawing.box(470, y, 266, 54, first, AMBER, second)
        drawing.arrow((354, y + 27), (468, y + 27))
        drawing.text(411, y + 20, answer, size=12)
        if row + 1 < len(QUESTIONS):
            drawing.arrow((189, y + 54), (189, y + 82))
            drawing.text(201, y + 72, "no" if answer == "yes" else "yes", size=12, at="start")
    return drawing.render()


ROLES = {
    "cli": "the command conquiet", "testing": "private servers, fault proxy", "dashboard": "pages over management",
    "contrib": "integrations: Flask and Django", "management": "what an operator inspects and changes",
    "app": "typed handlers, emit in a transaction", "transactional": "inbox, outbox, relay",
    "scheduler": "cron, intervals, one-off times", "processor": "retries, delays, dead letters, jobs",
    "runtime": "async engine on Redis", "rabbit": "engine on RabbitMQ", "db": "one write, its lock",
    "queue": "one message at a time", "redis_transport": "the only way to Redis", "core": "no I/O",
    "errors": "the tree of exceptions",
}  # fmt: skip


def layers() -> list[list[str]]:
    """Return the layers of the import-linter's contract, the highest first."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (found,) = [contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers"]
    return [re.findall(r"\w+", layer) for layer in found]


def architecture() -> str:
    """Return the packages in their layers."""
    found = layers()
    width, height = 860, 24 + len(found) * 58 + 30
    drawing = Drawing(width, height, "Packages of conquiet in layers; imports point downwards only")
    fills = (GREEN, AMBER, BLUE)
    for row, names in enumerate(found):
        each = (width - 40 - 10 * (len(names) - 1)) / len(names)
        for column, name in enumerate(names):
            fill = fills[min(2, row * 3 // len(found))]
            note = ROLES.get(name, "") if each > 150 else ""  # noqa: PLR2004 - pixels
            drawing.box(20 + column * (each + 10), 18 + row * 58, each, 46, name, fill, note)
    rule = "Imports point downwards only. Packages side by side do not import each other."
    drawing.text(width / 2, height - 14, rule, size=12, colour=SOFT)
    return drawing.render()


IMAGES_BY_NAME = {
    "message.svg": message, "crash-points.svg": crash_points, "not-handled.svg": not_handled,
    "architecture.svg": architecture,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(generated.main(__doc__, lambda: {IMAGES / name: draw() for name, draw in IMAGES_BY_NAME.items()}))
