"""The command line. ``main`` is the console script ``conquiet``; one module per command."""

import signal
import sys
from types import FrameType
from typing import Final, NoReturn

from conquiet.core.extras import require_extra

_NOT_DONE: Final = 2  # as in ``errors``, which needs typer
_TERMINATED: Final = 128 + signal.SIGTERM


def main() -> None:
    """Run the command line. A missing extra is reported in one sentence."""
    try:
        require_extra("cli", "typer", "rich")
    except ImportError as error:
        sys.stderr.write(f"conquiet: {error}\n")
        raise SystemExit(_NOT_DONE) from None
    from conquiet.cli.app import app
    from conquiet.cli.errors import set_debugging
    from conquiet.cli.forced_end import arm
    from conquiet.cli.logs import take_log_format
    from conquiet.cli.stdio import repair_stdio

    repair_stdio()
    arm()

    # Accepted anywhere: after an error, users append it to the command line.
    if "--debug" in sys.argv[1:]:
        sys.argv.remove("--debug")
        set_debugging()
    take_log_format(sys.argv)
    # Long-running commands install their handlers. The other commands end as after Ctrl-C: they close connections and
    # restore the terminal.
    before = signal.signal(signal.SIGTERM, _end)
    try:
        app()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(_TERMINATED)
