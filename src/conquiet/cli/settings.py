"""Where URLs come from: a flag, else the environment, else ``conquiet.toml`` in the current folder.

    redis_url  = "redis://localhost:6379/0"          CONQUIET_REDIS_URL
    db_url     = "mysql+pymysql://user@localhost/shop"   CONQUIET_DB_URL
    rabbit_url = "amqp://localhost/%2F"              CONQUIET_RABBIT_URL

``CONQUIET_CONFIG`` names another file. A password belongs into the environment rather than into a flag,
which every user of the machine can read in the list of processes.
"""

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from conquiet.cli.failures import CommandError

REDIS = "CONQUIET_REDIS_URL"
DB = "CONQUIET_DB_URL"
RABBIT = "CONQUIET_RABBIT_URL"
CONFIG = "CONQUIET_CONFIG"

_KEYS = {REDIS: "redis_url", DB: "db_url", RABBIT: "rabbit_url"}
_FILE = "conquiet.toml"

# The variable is named in the help, and not given to typer as envvar: it would show the value there.
RedisUrl = Annotated[
    str, typer.Option("--redis-url", metavar="URL", help=f"Redis or Valkey. Else ${REDIS}, else {_FILE}.")
]
DbUrl = Annotated[str, typer.Option("--db-url", metavar="URL", help=f"Database. Else ${DB}, else {_FILE}.")]
RabbitUrl = Annotated[str, typer.Option("--rabbit-url", metavar="URL", help=f"RabbitMQ. Else ${RABBIT}, else {_FILE}.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def find_url(flag: str, variable: str) -> str:
    """Return the URL, or an empty string if none was given anywhere."""
    return flag or os.environ.get(variable, "") or _from_file(variable)


def need_url(flag: str, variable: str) -> str:
    """Return the URL, or say how to give one."""
    url = find_url(flag, variable)
    if not url:
        option = "--" + _KEYS[variable].replace("_", "-")
        raise CommandError(
            f"no {option} was given",
            fix=f'give {option} URL, set {variable}, or write {_KEYS[variable]} = "..." into {_FILE}',
        )
    return url


def _from_file(variable: str) -> str:
    named = os.environ.get(CONFIG)
    path = Path(named or _FILE)
    try:
        settings: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            raise CommandError(f"the file {path} does not exist", fix=f"correct or unset {CONFIG}") from None
        return ""
    except tomllib.TOMLDecodeError as error:
        # Its text may quote the file, passwords included; the place is all that is needed.
        place = re.search(r"at line \d+, column \d+|at end of document", str(error))
        raise CommandError(f"{path} is not TOML{f' ({place[0]})' if place else ''}", fix="correct the file") from None
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"{path} cannot be read ({type(error).__name__})", fix="correct the file") from None
    unknown = sorted(settings.keys() - _KEYS.values())
    if unknown:
        raise CommandError(
            f"{path} has a setting {unknown[0]!r} that nobody knows", fix=f"the keys are {', '.join(_KEYS.values())}"
        )
    value = settings.get(_KEYS[variable], "")
    if not isinstance(value, str):
        raise CommandError(f"{_KEYS[variable]} in {path} must be a string", fix="put it into quotes")
    return value
