"""The health port replies to probes with any number of other connections, and needs few descriptors for that."""

import contextlib
import resource
import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from conquiet.cli.worker import endpoints
from conquiet.cli.worker.endpoints import CONNECTIONS, Endpoints
from conquiet.testing import wait_until

IDLE = 1_100


@pytest.fixture
def endless_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Request it before ``port``: a server reads its timeouts when it is created."""
    monkeypatch.setattr(endpoints, "MAX_AGE_S", 3_600.0)
    monkeypatch.setattr(endpoints, "_IDLE_TIMEOUT_S", 3_600.0)


@pytest.fixture
def port() -> Iterator[int]:
    served = Endpoints("127.0.0.1", 0, {"/livez": lambda: (200, "text/plain", b"alive\n")})
    yield served.port
    served.close()


def livez(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=30) as answer:
        body: bytes = answer.read()
        return body


def http_threads() -> int:
    return sum("process_request" in thread.name for thread in threading.enumerate())


@pytest.fixture
def enough_descriptors() -> Iterator[None]:
    """This process holds the clients' ends too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 8_192), hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("enough_descriptors", "endless_connections")
def test_more_than_a_thousand_idle_connections_do_not_keep_livez_from_answering(port: int) -> None:
    """By the bound alone: no time limit frees a thread or a descriptor here."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    with contextlib.ExitStack() as opened:
        for _ in range(IDLE):
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))

        assert livez(port) == b"alive\n"
        wait_until(lambda: http_threads() <= CONNECTIONS + 1)
        # This process also holds the clients' ends.
        wait_until(lambda: len(list(Path("/proc/self/fd").iterdir())) - before - IDLE <= CONNECTIONS + 5)


def test_a_connection_that_sends_a_byte_now_and_then_is_closed(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_AGE_S", 0.3)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as slow:
        slow.sendall(b"GET /livez HTTP/1.0\r\nX: ")

        def is_closed() -> bool:
            try:
                slow.sendall(b"a")
            except ConnectionError:
                return True
            return False

        wait_until(is_closed, interval_s=0.05)


def test_an_idle_connection_is_closed_after_a_while(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_AGE_S", 0.3)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as idle:
        assert idle.recv(100) == b""


def test_an_idle_connection_is_closed_by_its_timeout_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not wait for the greatest age of a connection, and not for another one either."""
    monkeypatch.setattr(endpoints, "MAX_AGE_S", 3_600.0)
    monkeypatch.setattr(endpoints, "_IDLE_TIMEOUT_S", 0.2)
    served = Endpoints("127.0.0.1", 0, {})
    try:
        with socket.create_connection(("127.0.0.1", served.port), timeout=30) as idle:
            assert idle.recv(100) == b""
    finally:
        served.close()


def test_a_client_that_hangs_up_leaves_no_traceback(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
            # An RST instead of a FIN: the response is sent to a closed connection.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: http_threads() == 0)

    assert livez(port) == b"alive\n"
    said = capfd.readouterr()
    assert "Traceback" not in said.err + said.out
