"""Find URLs: a flag, else the environment, else ``conquiet.toml`` (see ``core.server_urls``).

Pass a password in the environment, not in a flag: every user of the host can read flags in the list of processes.
"""

import os
from typing import Annotated

import typer

from conquiet.cli.errors import CommandError
from conquiet.core.server_urls import CONFIG, DB, RABBIT, REDIS, configured_url
from conquiet.core.server_urls import FILE as _FILE
from conquiet.core.server_urls import KEYS as _KEYS

__all__ = ["CONFIG", "DB", "RABBIT", "REDIS"]

RABBIT_API = "CONQUIET_RABBIT_API_URL"

# Named in the help only. As envvar of typer the help would show its value.
RedisUrl = Annotated[
    str, typer.Option("--redis-url", metavar="URL", help=f"Redis or Valkey. Else ${REDIS}, else {_FILE}.")
]
DbUrl = Annotated[str, typer.Option("--db-url", metavar="URL", help=f"Database. Else ${DB}, else {_FILE}.")]
RabbitUrl = Annotated[str, typer.Option("--rabbit-url", metavar="URL", help=f"RabbitMQ. Else ${RABBIT}, else {_FILE}.")]
RabbitApiUrl = Annotated[
    str,
    typer.Option(
        "--rabbit-api", metavar="URL", help=f"RabbitMQ's management API. Else ${RABBIT_API}, else port 15672."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON. Durations are seconds.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Report what would be done, without doing it.")]
InboxTable = Annotated[str, typer.Option("--inbox", help="Name of the inbox table.")]
OutboxTable = Annotated[str, typer.Option("--outbox", help="Name of the outbox table.")]

INBOX = "conquiet_inbox"
OUTBOX = "conquiet_outbox"


def find_url(flag: str, variable: str) -> str:
    """Return the URL; an empty string if none is configured."""
    return flag or configured_url(variable)


def find_api_url(flag: str, rabbit_url: str) -> str:
    """Return the URL of RabbitMQ's management API; by default on the host of the broker."""
    from conquiet.rabbitmq_api import default_api_url

    return flag or os.environ.get(RABBIT_API, "") or default_api_url(rabbit_url)


def require_url(flag: str, variable: str) -> str:
    """Return the URL, or raise an error that explains how to configure one."""
    url = find_url(flag, variable)
    if not url:
        option = "--" + _KEYS[variable].replace("_", "-")
        raise CommandError(
            f"no {option} was given",
            fix=f'give {option} URL, set {variable}, or write {_KEYS[variable]} = "..." into {_FILE}',
        )
    return url
