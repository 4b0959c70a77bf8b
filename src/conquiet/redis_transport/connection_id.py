"""Which connection of which server: what a worker reports, so that others can see that its connection was closed.

The kernel closes the connections of a process that is killed, and the server notices at once. A client id alone does
not name a connection: after a restart or on another server the same number is another client's. So the run id of the
server's process stands beside it.

See docs/decisions/0081.
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
