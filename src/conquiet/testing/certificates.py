"""Make a self-signed certificate for 127.0.0.1 with the ``openssl`` program, valid for a day."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conquiet.testing.errors import ServerUnavailableError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate, which is also its own authority, and its key."""

    certificate: Path
    key: Path


def make_certificate(folder: Path) -> Certificate:
    """Write ``server.crt`` and ``server.key`` into ``folder``."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise ServerUnavailableError("TLS needs the openssl program (Debian/Ubuntu: apt-get install openssl)")
    made = Certificate(folder / "server.crt", folder / "server.key")
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    command += ["-keyout", str(made.key), "-out", str(made.certificate)]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - fixed arguments
    return made
