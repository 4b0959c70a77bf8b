"""The command line. ``main`` is the console script ``conquiet``; one module per command."""

from conquiet.kernel.extras import require_extra


def main() -> None:
    """Run the command line; a missing extra ends it with one sentence."""
    try:
        require_extra("cli", "typer", "rich")
    except ImportError as error:
        raise SystemExit(f"conquiet: {error}") from None
    from conquiet.cli.app import app

    app()
