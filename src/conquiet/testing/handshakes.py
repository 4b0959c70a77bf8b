"""The start of four protocols over a plain socket: whether a server is ready, and its version.

No client library is used: readiness must not depend on an optional extra or on the retries of a library.
"""

from __future__ import annotations

import re
import socket
import struct
from typing import TYPE_CHECKING, Any

from conquiet.core.closing import ClosedAfterUse

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROBE_TIMEOUT_S = 2.0  # of one probe of a server that is starting
ANSWER_TIMEOUT_S = 30.0  # of one step with a running server: on a busy machine it may pause for seconds
_AMQP_HEADER = b"AMQP\x00\x00\x09\x01"
_AMQP_VERSION = re.compile(rb"\x07versionS(.{4})", re.DOTALL)
_POSTGRES_PROTOCOL_3 = 3 << 16
_POSTGRES_FIELDS = re.compile("\0.?")
_MYSQL_PROTOCOL_10 = 10
_MYSQL_VERSION_PREFIX = "5.5.5-"  # MariaDB 10 puts it first so that old replicas accept the number


class NotReadyError(OSError):
    """The server replied, but is not ready yet."""


def connect_unix(path: Path, *, timeout_s: float = ANSWER_TIMEOUT_S) -> socket.socket:
    """Return a connection to a Unix socket, with a timeout on every step."""
    channel = socket.socket(socket.AF_UNIX)
    try:
        channel.settimeout(timeout_s)
        channel.connect(str(path))
    except BaseException:
        channel.close()
        raise
    return channel


def connect_tcp(host: str, port: int, *, timeout_s: float = ANSWER_TIMEOUT_S) -> socket.socket:
    """Return a TCP connection, with a timeout on every step."""
    return socket.create_connection((host, port), timeout=timeout_s)


class Resp(ClosedAfterUse):
    """A Redis connection: send a command, read its reply.

    Args:
        channel: The connection; closed with this object, and if a command of ``login`` fails.
        login: Commands that are sent first, such as AUTH.
    """

    def __init__(self, channel: socket.socket, *login: Sequence[str]) -> None:
        self._channel = channel
        self._reader = channel.makefile("rb")
        try:
            for words in login:
                self.call(*words)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()
        self._channel.close()

    def call(self, *words: str | bytes) -> Any:
        """Send one command and return its reply: bytes, an int, a list or None.

        An error reply is a :class:`NotReadyError` (LOADING, NOAUTH, …).
        """
        encoded = [word if isinstance(word, bytes) else word.encode() for word in words]
        parts = [b"*%d\r\n" % len(encoded)]
        parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded]
        self._channel.sendall(b"".join(parts))
        return self._read()

    def _read(self) -> Any:
        line = self._line()
        kind, rest = line[:1], line[1:]
        match kind:
            case b"+":
                return rest
            case b":":
                return int(rest)
            case b"-":
                raise NotReadyError(rest.decode(errors="replace"))
            case b"$":
                size = int(rest)
                return None if size < 0 else self._bytes(size)
            case b"*":
                return [self._read() for _ in range(int(rest))]
            case _:
                raise NotReadyError(f"not a Redis reply: {line[:40]!r}")

    def _bytes(self, size: int) -> bytes:
        data = self._reader.read(size + 2)
        if len(data) != size + 2:
            raise NotReadyError("the connection ended")
        return data[:-2]

    def _line(self) -> bytes:
        line = self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise NotReadyError("the connection ended")
        return line[:-2]


def redis_identity(connection: Resp) -> tuple[str, str]:
    """Return ``("redis", "7.0.15")`` or ``("valkey", "9.1.0")`` of a server that has loaded its data."""
    if connection.call("PING") != b"PONG":
        raise NotReadyError("PING was not answered by PONG")
    text = connection.call("INFO", "server").decode(errors="replace")
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    # Valkey reports 7.2.4 as its redis_version, for old clients; its own number is the true one.
    if "valkey_version" in facts:
        return "valkey", facts["valkey_version"]
    return "redis", facts.get("redis_version", "unknown")


def mysql_version(channel: socket.socket) -> str:
    """Return the version from the greeting that MySQL and MariaDB send to every client."""
    with channel:
        head = _receive(channel, 4)
        body = _receive(channel, int.from_bytes(head[:3], "little"))
    if body[0] != _MYSQL_PROTOCOL_10:
        raise NotReadyError(f"no greeting: {body[:80]!r}")
    return body[1 : body.index(0, 1)].decode(errors="replace").removeprefix(_MYSQL_VERSION_PREFIX)


def amqp_version(channel: socket.socket) -> str:
    """Return the version from the Connection.Start method, the reply to an AMQP 0-9-1 protocol header."""
    with channel:
        channel.sendall(_AMQP_HEADER)
        kind, _, size = struct.unpack(">BHI", _receive(channel, 7))
        body = _receive(channel, size)
    if kind != 1 or body[:4] != b"\x00\x0a\x00\x0a":
        raise NotReadyError(f"no Connection.Start: {body[:40]!r}")
    if (found := _AMQP_VERSION.search(body)) is None:
        return "unknown"
    length = int.from_bytes(found[1], "big")
    return body[found.end() : found.end() + length].decode(errors="replace")


def postgres_version(channel: socket.socket, user: str, database: str) -> str:
    """Return the version that PostgreSQL reports after a login, or "unknown" if it requires a password.

    Raises:
        NotReadyError: It replied with an error: it is starting, recovering or stopping.
    """
    words = b"".join(part.encode() + b"\0" for part in ("user", user, "database", database)) + b"\0"
    with channel:
        channel.sendall(struct.pack(">II", len(words) + 8, _POSTGRES_PROTOCOL_3) + words)
        version = "unknown"
        while True:
            kind, size = struct.unpack(">cI", _receive(channel, 5))
            body = _receive(channel, size - 4)
            match kind:
                case b"S" if body.startswith(b"server_version\0"):
                    version = body.split(b"\0")[1].decode(errors="replace").split(" ", maxsplit=1)[0]
                case b"R" if body[:4] != bytes(4):
                    return version  # it requires a password, so it has started
                case b"Z":
                    channel.sendall(b"X" + struct.pack(">I", 4))
                    return version
                case b"E":
                    raise NotReadyError(_POSTGRES_FIELDS.sub(" ", body.decode(errors="replace")))
                case _:
                    pass


def _receive(channel: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = channel.recv(size - len(received))
        if not chunk:
            raise NotReadyError("the connection ended")
        received += chunk
    return received
