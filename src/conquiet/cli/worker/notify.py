"""Messages to systemd (``Type=notify``)."""

import contextlib
import os
import socket


def notify_systemd(state: str) -> bool:
    """Send ``READY=1`` or ``STOPPING=1``; False if systemd does not listen. Never raises."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(state.encode(), address)
        return True
    return False
