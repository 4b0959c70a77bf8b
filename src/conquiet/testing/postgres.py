"""A private PostgreSQL server."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING, ClassVar

from conquiet.testing import discovery, handshakes
from conquiet.testing.databases import PostgresDatabases, execute
from conquiet.testing.errors import ServerStartError
from conquiet.testing.process import PrivateServer, ServerCommand

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DATABASE = "postgres"
USER = "postgres"

# Durable against the death of the process, not of the machine: without fsync the log is still written at each commit,
# and written data is in the kernel's cache when the process is killed. full_page_writes stays on, because a kill can
# tear a page.
_SETTINGS = {
    "fsync": "off",
    "shared_buffers": "32MB",
    "max_connections": "400",
    "timezone": "UTC",
    # Not "posix": a killed server would leave files in /dev/shm. These files are in the data folder.
    "dynamic_shared_memory_type": "mmap",
    "log_min_messages": "warning",
}
# The server refuses to run as root. Debian's package creates the first account; the second exists on every system.
_ACCOUNTS = ("postgres", "nobody")


class PostgresServer(PostgresDatabases, PrivateServer):
    """postgres with a superuser ``postgres`` that needs no password, and one empty database, ``postgres``.

    Started by root it runs as the account ``postgres``, or as an unprivileged one: the server refuses to run as root.

    Args:
        binary: Program to run instead of the one found.
        settings: Further settings, such as ``{"lock_timeout": "1s"}``.
    """

    product: ClassVar[str] = "postgres"
    # SIGTERM would wait until every client has disconnected.
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT

    def __init__(self, *, binary: str | os.PathLike[str] | None = None, settings: dict[str, str] | None = None) -> None:
        super().__init__()
        self._binary = discovery.find_postgres(binary)
        self._settings = {**_SETTINGS, **(settings or {})}
        self._account = _account()

    @property
    def name(self) -> str:
        """``postgresql``."""
        return "postgresql"

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the database ``postgres``."""
        return f"postgresql+psycopg://{USER}@{self.host}:{self.port}/{DATABASE}"

    @property
    def unix_socket(self) -> Path:
        """Path of the Unix socket."""
        return self.folder / f".s.PGSQL.{self.port}"

    # ------------------------------------------------------------------ replication
    def follow(self, primary: PostgresServer) -> None:
        """Become a streaming replica of another server: delete the data, copy the data of that server, and start again.

        A server that was killed, or was the primary before, follows the promoted server.
        """
        if self.is_running:
            self.kill()
        shutil.rmtree(self._data)
        copy = discovery.find_beside(self._binary, "pg_basebackup")
        argv = [str(copy), f"--pgdata={self._data}", f"--host={primary.host}", f"--port={primary.port}"]
        argv += [f"--username={USER}", "--wal-method=stream", "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        self._run_to_end(self._as_account(argv))
        self.restart()

    def promote(self) -> None:
        """Let a replica become a primary, and return once it accepts writes."""
        execute(self.url, "SELECT pg_promote(true, 60)")

    def _prepare(self) -> None:
        if self._account is not None:
            os.chown(self.folder, *self._account)
        initdb = discovery.find_beside(self._binary, "initdb")
        argv = [str(initdb), f"--pgdata={self._data}", f"--username={USER}", "--auth=trust", "--encoding=UTF8"]
        # The locale C exists on every system and sorts text by bytes. 1 MB: a fresh folder is small then.
        argv += ["--locale=C", "--wal-segsize=1", "--no-sync", "--no-instructions"]
        self._run_to_end(self._as_account(argv))

    def _command(self) -> ServerCommand:
        argv = [str(self._binary), "-D", str(self._data), "-p", str(self.port), "-k", str(self.folder)]
        settings = {"listen_addresses": self.host, **self._settings}
        for name, value in settings.items():
            argv += ["-c", f"{name}={value}"]
        return self._as_account(argv)

    def _probe(self) -> str:
        # The Unix socket is in our folder, so the reply comes from this server. It replies with an error until recovery
        # has ended; the TCP port is bound by then or the server has failed.
        version = handshakes.postgres_version(
            handshakes.connect_unix(self.unix_socket, timeout_s=handshakes.PROBE_TIMEOUT_S), USER, DATABASE
        )
        handshakes.postgres_version(self._probe_tcp(), USER, DATABASE)
        return version

    def _as_account(self, argv: Sequence[str]) -> ServerCommand:
        return ServerCommand(tuple(argv), {"LC_ALL": "C"}, self._account)


def _account() -> tuple[int, int] | None:
    """Return user and group to run as; None for the current ones."""
    if os.geteuid() != 0:
        return None
    import pwd

    for name in _ACCOUNTS:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return found.pw_uid, found.pw_gid
    raise ServerStartError(
        f"PostgreSQL refuses to run as root, and this machine has none of the accounts {', '.join(_ACCOUNTS)}", log=""
    )
