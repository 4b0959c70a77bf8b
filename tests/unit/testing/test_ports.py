import socket
from pathlib import Path

import pytest

from conquiet.testing import free_port, ports


def test_a_free_port_can_be_bound() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))


def test_a_free_port_lies_below_the_range_that_outgoing_connections_use() -> None:
    """A client that reconnects to a killed server could otherwise take the server's port, or connect to itself."""
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    assert all(port < first_ephemeral for port in (free_port() for _ in range(20)))


def test_a_port_with_a_listener_is_not_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        assert not ports._can_bind(listener.getsockname()[1])


def test_without_a_known_ephemeral_range_the_kernel_chooses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ports, "_RANGE_FILE", tmp_path / "missing")

    assert 0 < free_port() < 65_536
