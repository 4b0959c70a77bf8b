"""The three standard streams, whatever the shell has left of them."""

import io
import os
import sys
from pathlib import Path


def mend_standard_streams() -> None:
    """See to it that they are there, and that no character is one too many for them.

    A number that was closed would be given to the next thing that is opened: what a child says would end in a server's
    connection. ``sys.stdin`` stays None then, so that who needs it can say that it is closed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
    # They stay open for as long as the process lives.
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that is not UTF-8 gets escapes for what it cannot show.
        sys.stdout.reconfigure(errors="backslashreplace")
