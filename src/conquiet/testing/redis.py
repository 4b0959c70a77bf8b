"""A private Redis or Valkey server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from conquiet.testing import discovery, handshakes
from conquiet.testing.certificates import make_certificate
from conquiet.testing.process import PrivateServer, ServerCommand

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path


class RedisServer(PrivateServer):
    """redis-server or valkey-server on a loopback port and on a Unix socket.

    Args:
        binary: Program to run; found by :func:`conquiet.testing.discovery.find_redis` if left out.
        aof: Keep an append-only file. Redis writes it before it replies, so confirmed writes survive ``kill()``
            (but no power failure: it is not synced). Without it ``kill()`` loses everything.
        password: Required of every client.
        tls: Speak TLS on the port, with a certificate that the URL names as its authority.
        extra_args: Further options, such as ``("--maxmemory", "8mb")``.
    """

    product: ClassVar[str] = "redis"
    start_timeout_s: ClassVar[float] = 30.0

    def __init__(
        self,
        *,
        binary: str | os.PathLike[str] | None = None,
        aof: bool = False,
        password: str | None = None,
        tls: bool = False,
        extra_args: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._binary = discovery.find_redis(binary)
        self._name = self.product
        self._aof = aof
        self._password = password
        self._tls = tls
        self._extra_args = tuple(extra_args)

    @property
    def url(self) -> str:
        """``redis://`` or ``rediss://``, database 0."""
        login = f":{quote(self._password, safe='')}@" if self._password else ""
        address = f"{login}{self.host}:{self.port}/0"
        return f"rediss://{address}?ssl_ca_certs={self.ca_file}" if self._tls else f"redis://{address}"

    @property
    def name(self) -> str:
        """``redis`` or ``valkey``, as the server reports."""
        return self._name

    @property
    def unix_socket(self) -> Path:
        """Path of the Unix socket, which never speaks TLS."""
        return self.folder / "redis.sock"

    @property
    def ca_file(self) -> Path:
        """The certificate that clients have to trust when TLS is on."""
        return self.folder / "server.crt"

    def call(self, *words: str | bytes) -> Any:
        """Send one command on a separate connection."""
        with self._connect() as connection:
            return connection.call(*words)

    def flush(self) -> None:
        """Remove all keys. The server is private: it has no other users."""
        self.call("FLUSHALL")

    def _prepare(self) -> None:
        if self._tls:
            make_certificate(self.folder)

    def _command(self) -> ServerCommand:
        port = ["--port", "0", "--tls-port"] if self._tls else ["--port"]
        argv = [str(self._binary), *port, str(self.port), "--bind", self.host, "--dir", str(self.folder)]
        argv += ["--unixsocket", str(self.unix_socket), "--daemonize", "no", "--save", ""]
        # Not "everysec": while it syncs in the background Redis replies first and writes up to two seconds later.
        argv += ["--appendonly", "yes" if self._aof else "no", "--appendfsync", "no"]
        if self._tls:
            argv += ["--tls-cert-file", str(self.ca_file), "--tls-key-file", str(self.folder / "server.key")]
            argv += ["--tls-ca-cert-file", str(self.ca_file), "--tls-auth-clients", "no"]
        if self._password:
            argv += ["--requirepass", self._password]
        return ServerCommand((*argv, *self._extra_args), {})

    def _connect(self, timeout_s: float = handshakes.ANSWER_TIMEOUT_S) -> handshakes.Resp:
        # The Unix socket is in our folder, so the reply comes from this server. Redis binds its TCP port
        # before it and exits when that fails.
        login = [["AUTH", self._password]] if self._password else []
        return handshakes.Resp(handshakes.connect_unix(self.unix_socket, timeout_s=timeout_s), *login)

    def _probe(self) -> str:
        with self._connect(handshakes.PROBE_TIMEOUT_S) as connection:
            self._name, version = handshakes.redis_identity(connection)
        self._probe_tcp().close()
        return version
