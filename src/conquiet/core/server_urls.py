"""Find the URLs of servers: in the environment, else in ``conquiet.toml`` in the current folder.

    redis_url  = "redis://localhost:6379/0"          CONQUIET_REDIS_URL
    db_url     = "mysql+pymysql://user@localhost/shop"   CONQUIET_DB_URL
    rabbit_url = "amqp://localhost/%2F"              CONQUIET_RABBIT_URL

``CONQUIET_CONFIG`` names another file.
"""

import os
import re
import tomllib
from pathlib import Path
from typing import Any, Final

from conquiet.errors import ConfigurationError

REDIS: Final = "CONQUIET_REDIS_URL"
DB: Final = "CONQUIET_DB_URL"
RABBIT: Final = "CONQUIET_RABBIT_URL"
CONFIG: Final = "CONQUIET_CONFIG"

KEYS: Final = {REDIS: "redis_url", DB: "db_url", RABBIT: "rabbit_url"}
FILE: Final = "conquiet.toml"


def configured_url(variable: str) -> str:
    """Return the URL from the environment or the file, an empty string if neither has it.

    Raises:
        ConfigurationError: The file cannot be read or is invalid; ``fix`` holds the remedy.
    """
    return os.environ.get(variable, "") or _from_file(variable)


def _from_file(variable: str) -> str:
    named = os.environ.get(CONFIG)
    path = Path(named or FILE)
    try:
        settings: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            raise ConfigurationError(f"the file {path} does not exist", fix=f"correct or unset {CONFIG}") from None
        return ""
    except tomllib.TOMLDecodeError as error:
        # The error text may quote the file, including passwords, so only the position is shown.
        place = re.search(r"at line \d+, column \d+|at end of document", str(error))
        raise ConfigurationError(
            f"{path} is not TOML{f' ({place[0]})' if place else ''}", fix="correct the file"
        ) from None
    except (OSError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be read ({type(error).__name__})", fix="correct the file") from None
    unknown = sorted(settings.keys() - KEYS.values())
    if unknown:
        raise ConfigurationError(
            f"{path} has a setting {unknown[0]!r} that does not exist", fix=f"the keys are {', '.join(KEYS.values())}"
        )
    value = settings.get(KEYS[variable], "")
    if not isinstance(value, str):
        raise ConfigurationError(f"{KEYS[variable]} in {path} must be a string", fix="put it into quotes")
    return value
