"""A private MySQL or MariaDB server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

from conquiet.testing import discovery, handshakes
from conquiet.testing.databases import MySQLDatabases
from conquiet.testing.discovery import MySQLFlavour
from conquiet.testing.process import PrivateServer, ServerCommand

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DATABASE = "conquiet"

# Durable against the death of the process, not of the machine: with 2 the log is written at each commit and synced
# once a second, and written data is in the kernel's cache when the process is killed. The doublewrite buffer stays
# on, because a kill can tear a page.
_COMMON = (
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-buffer-pool-size=64M",
    "--skip-log-bin",
    "--max-connections=400",
    # Fault tests break many connections; the default blocks the host after 100 of them.
    "--max-connect-errors=4294967295",
    "--character-set-server=utf8mb4",
)
_BY_FLAVOUR = {
    MySQLFlavour.MARIADB: ("--innodb-log-file-size=16M", "--skip-name-resolve"),
    # Without name resolution MySQL's only root, root@localhost, cannot log in over TCP.
    MySQLFlavour.MYSQL: ("--innodb-redo-log-capacity=16M", "--mysqlx=OFF", "--secure-file-priv=NULL"),
}


class MySQLServer(MySQLDatabases, PrivateServer):
    """mariadbd or mysqld with a root user without a password and one empty database, ``conquiet``.

    Args:
        flavour: MariaDB or MySQL; by default the installed flavour, MariaDB first.
        binary: Program to run instead of the one found.
        extra_args: Further server options, such as ``("--innodb-lock-wait-timeout=1",)``.
    """

    product: ClassVar[str] = "mysql"

    def __init__(
        self,
        *,
        flavour: MySQLFlavour | None = None,
        binary: str | os.PathLike[str] | None = None,
        extra_args: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._program = discovery.find_mysql(flavour, binary)
        self._extra_args = tuple(extra_args)

    @property
    def flavour(self) -> MySQLFlavour:
        """The flavour of this server."""
        return self._program.flavour

    @property
    def name(self) -> str:
        """``mariadb`` or ``mysql``."""
        return self.flavour.value

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the database ``conquiet``."""
        return f"mysql+pymysql://root@{self.host}:{self.port}/{DATABASE}?charset=utf8mb4"

    @property
    def unix_socket(self) -> Path:
        """Path of the Unix socket."""
        return self.folder / "mysql.sock"

    def _prepare(self) -> None:
        (self.folder / "tmp").mkdir()
        self._init_file.write_text(f"CREATE DATABASE IF NOT EXISTS {DATABASE} CHARACTER SET utf8mb4;\n")
        common = [f"--datadir={self._data}", f"--tmpdir={self.folder / 'tmp'}", *self._as_user()]
        if self.flavour is MySQLFlavour.MARIADB:
            installer = discovery.find_mariadb_installer(self._program.path)
            # --force: a container without an /etc/hosts cannot resolve its own name, and only addresses are used here.
            argv = [str(installer), "--no-defaults", "--force", *common, *_BY_FLAVOUR[self.flavour]]
            argv += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        else:
            argv = [str(self._program.path), "--no-defaults", "--initialize-insecure", *common]
            argv += [*_COMMON, *_BY_FLAVOUR[self.flavour]]
        self._run_to_end(ServerCommand(tuple(argv), {}))

    def _command(self) -> ServerCommand:
        # --no-defaults has to come first: the machine's own configuration must not reach a private server.
        argv = [str(self._program.path), "--no-defaults", f"--datadir={self._data}", f"--port={self.port}"]
        argv += [f"--bind-address={self.host}", f"--socket={self.unix_socket}", f"--init-file={self._init_file}"]
        argv += [f"--pid-file={self.folder / 'mysql.pid'}", f"--tmpdir={self.folder / 'tmp'}", *self._as_user()]
        argv += [*_COMMON, *_BY_FLAVOUR[self.flavour], *self._extra_args]
        return ServerCommand(tuple(argv), {})

    def _probe(self) -> str:
        # The Unix socket lies in our own folder, so the greeting comes from this server. The greeting comes after
        # recovery and the init file; the TCP port is bound by then or the server has given up.
        version = handshakes.mysql_version(
            handshakes.connect_unix(self.unix_socket, timeout_s=handshakes.PROBE_TIMEOUT_S)
        )
        handshakes.mysql_version(self._probe_tcp())
        return version

    @property
    def _init_file(self) -> Path:
        return self.folder / "init.sql"

    @staticmethod
    def _as_user() -> list[str]:
        # Without this option the server refuses to run as root.
        return ["--user=root"] if os.geteuid() == 0 else []
