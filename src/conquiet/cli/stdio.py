"""Repair the standard streams that the shell closed or that cannot encode all characters; notice the end of stdin."""

import io
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path


def repair_stdio() -> None:
    """Ensure that the standard streams are open and replace characters they cannot encode.

    A closed descriptor would be reused by the next file or socket, and the output of a child would go to a server.
    ``sys.stdin`` remains None, so that a command can report that it is closed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this one
    # They remain open until the process ends.
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that is not UTF-8 gets escapes.
        sys.stdout.reconfigure(errors="backslashreplace")


def call_at_end_of_input(callback: Callable[[], None]) -> None:
    """Call a function, in a thread, when the parent process has closed our stdin or died. Its input is dropped."""

    def watch() -> None:
        while os.read(0, 65_536):
            pass
        callback()

    threading.Thread(target=watch, name="conquiet-parent-watch", daemon=True).start()
