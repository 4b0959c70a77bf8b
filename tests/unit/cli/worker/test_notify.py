"""Messages to systemd."""

import os
import socket
from pathlib import Path

import pytest

from conquiet.cli.worker.notify import notify_systemd


def test_systemd_is_notified_if_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify_systemd("READY=1")

    path = f"/tmp/cq-{os.urandom(4).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        assert notify_systemd("READY=1")
        assert listener.recv(100) == b"READY=1"
    Path(path).unlink()
    assert not notify_systemd("READY=1"), "a missing listener is no error"
