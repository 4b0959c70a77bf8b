"""Make docs/img/demo.svg from a real run of the demo.

.venv/bin/python scripts/demo_svg.py [FILE]
"""

import io
import re
import sys
from pathlib import Path
from typing import Self

from rich.console import Console

from conquiet.cli.demo.environment import open_environment
from conquiet.cli.demo.orchestrator import Orchestrator
from conquiet.cli.demo.plan import DemoPlan
from conquiet.cli.demo.view import DemoSnapshot, LiveView, Rate, render

_WIDTH = 112


class RecordedView(LiveView):
    """Terminal output, with one frame of the live picture: when the killed worker's messages have been claimed."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._speed = Rate()
        self._pictured = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, snapshot: DemoSnapshot) -> None:
        """Keep one picture."""
        self._elapsed_s = snapshot.elapsed_s
        rate = self._speed.of(snapshot)
        if snapshot.recovered and not self._pictured:
            self._pictured = True
            self._console.print(render(snapshot, rate))


def main() -> None:
    """Run the demo and write the picture."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "img" / "demo.svg"
    console = Console(record=True, width=_WIDTH, force_terminal=True, color_system="truecolor", file=io.StringIO())
    console.print("[bold]$ conquiet demo[/]", highlight=False)
    view = RecordedView(console)
    with open_environment(redis_url=None, db_url=None, mysql=False, durable=False) as environment:
        summary = Orchestrator(DemoPlan(), environment, view).run()
        view.show_summary(summary)
    target.parent.mkdir(parents=True, exist_ok=True)
    # rich names a font on a foreign host; the reader's own monospace font will do.
    picture_text = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="conquiet demo"), flags=re.DOTALL)
    target.write_text(picture_text, encoding="utf-8")
    if not summary.balanced:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
