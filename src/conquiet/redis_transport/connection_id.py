"""Identify a connection and its server. A worker reports it, so that others can see that its connection was closed.

The kernel closes the connections of a killed process, and the server notices immediately. A client id alone does not
identify a connection: after a restart, or on another server, another client has the same number. So it is reported
together with the run id of the server's process.

See docs/decisions/0052.
"""

from typing import NamedTuple


class ConnectionId(NamedTuple):
    """One connection.

    Attributes:
        server: ``run_id`` of the server's process.
        client: Its CLIENT ID there. A running server gives no number twice.
    """

    server: str
    client: int


def run_id(info: str) -> str:
    """Return the run id in the text of INFO; empty if it has none."""
    return next((line[7:].strip() for line in info.splitlines() if line.startswith("run_id:")), "")
