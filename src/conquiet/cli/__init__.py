"""The command line. ``main`` is the console script ``conquiet``; one module per command."""

import signal
import sys
from types import FrameType
from typing import Final, NoReturn

from conquiet.kernel.extras import require_extra

_NOT_DONE: Final = 2  # as in ``failures``, which needs typer
_TERMINATED: Final = 128 + signal.SIGTERM


def main() -> None:
    """Run the command line; a missing extra ends it with one sentence."""
    try:
        require_extra("cli", "typer", "rich")
    except ImportError as error:
        sys.stderr.write(f"conquiet: {error}\n")
        raise SystemExit(_NOT_DONE) from None
    from conquiet.cli.app import app
    from conquiet.cli.failures import set_debugging
    from conquiet.cli.streams import mend_standard_streams

    mend_standard_streams()

    # Wherever it stands: whoever meets an error adds it to the end of the line.
    if "--debug" in sys.argv[1:]:
        sys.argv.remove("--debug")
        set_debugging()
    # Commands that run for long have handlers of their own. The others end as after Ctrl-C: what is open is closed,
    # a terminal that was drawn on is put right.
    before = signal.signal(signal.SIGTERM, _end)
    try:
        app()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(_TERMINATED)
