"""Errors of private servers, and the state that each leaves.

RuntimeError
├── ServerUnavailableError   no program to run was found, or no server at a given URL; nothing was started
├── ServerStartError         a program ran but did not reply; it was killed, its log is in the text
├── ServerStateError         called in the wrong order (resume before pause, start after stop); nothing changed
└── ServerNotOwnedError      the server was given by URL and must not be killed; nothing changed
"""

from __future__ import annotations


class ServerUnavailableError(RuntimeError):
    """No server program was found, or no server at a URL from the environment.

    The text names the package to install, or the variable.
    """


class ServerStartError(RuntimeError):
    """The server did not start. Its processes were killed and its folder was removed.

    Attributes:
        log: The last lines the server wrote.
    """

    # The keyword has a default so that pickle can rebuild the error from ``args`` alone.
    def __init__(self, message: str, *, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class ServerStateError(RuntimeError):
    """The server is not in the state this call needs. Nothing was done."""


class ServerNotOwnedError(RuntimeError):
    """The server came from an environment variable: others may be using it, so it is never killed or paused."""
