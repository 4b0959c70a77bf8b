"""The command line. ``main`` is the console script ``conquiet``; one module per command."""

import sys

from conquiet.kernel.extras import require_extra


def main() -> None:
    """Run the command line; a missing extra ends it with one sentence."""
    try:
        require_extra("cli", "typer", "rich")
    except ImportError as error:
        raise SystemExit(f"conquiet: {error}") from None
    from conquiet.cli.app import app
    from conquiet.cli.failures import set_debugging

    # Wherever it stands: whoever meets an error adds it to the end of the line.
    if "--debug" in sys.argv[1:]:
        sys.argv.remove("--debug")
        set_debugging()
    try:
        app()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
