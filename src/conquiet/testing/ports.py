"""Choose free loopback ports that stay free.

For port 0 the kernel returns an *ephemeral* port. Such a port can be taken by any outgoing connection
while a killed server is down; worse, a client that reconnects in a loop can connect to itself on it, and then
the server cannot restart on its port. So ports come from below the ephemeral range where that is known.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"

_LOWEST = 15_000
_ATTEMPTS = 200
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")

# Not seeded by the test run: pytest-randomly seeds the global generator, and then every process of a
# parallel run would try the same ports in the same order.
_random = random.SystemRandom()


def free_port() -> int:
    """Return a loopback TCP port without a listener. Another process may bind it first: retry on a bind error."""
    highest = _first_ephemeral_port() - 1
    if highest > _LOWEST:
        for _ in range(_ATTEMPTS):
            port = _random.randint(_LOWEST, highest)
            if _can_bind(port):
                return port
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)  # noqa: S101 - typeshed declares Any
        return port


def _first_ephemeral_port() -> int:
    try:
        return int(_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0  # unknown here, for instance on macOS


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        # Without SO_REUSEADDR on purpose: a port with lingering old connections is not free.
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
