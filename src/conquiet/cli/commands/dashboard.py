"""``conquiet dashboard``: serve the dashboard."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.cli.errors import CommandError
from conquiet.cli.settings import (
    DB,
    INBOX,
    OUTBOX,
    RABBIT,
    REDIS,
    DbUrl,
    InboxTable,
    OutboxTable,
    RabbitApiUrl,
    RabbitUrl,
    RedisUrl,
    find_url,
    require_url,
)

if TYPE_CHECKING:
    from conquiet.dashboard.app import Dashboard
    from conquiet.dashboard.server import Listener

TOKEN = "CONQUIET_DASHBOARD_TOKEN"  # noqa: S105 - the name of the variable


def dashboard(
    redis_url: RedisUrl = "",
    db_url: DbUrl = "",
    rabbit_url: RabbitUrl = "",
    rabbit_api: RabbitApiUrl = "",
    host: Annotated[
        str, typer.Option(help="Address to listen on. An address that is not loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 selects a free port.")] = 8321,
    allowed_host: Annotated[list[str] | None, typer.Option(help="A further accepted host name. Repeatable.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="A group of schedules to show. Repeatable.")] = None,
    reveal: Annotated[
        bool, typer.Option("--reveal", help="Show payloads with masked secrets to users who are logged in.")
    ] = False,
    outbox: OutboxTable = OUTBOX,
    inbox: InboxTable = INBOX,
) -> None:
    """Serve the dashboard until Ctrl-C. Read-only, unless $CONQUIET_DASHBOARD_TOKEN is set: users log in with it.

    Exit codes: 0 ended by SIGTERM or Ctrl-C, 2 usage error, no server, or the port is taken.

    Examples:
        conquiet dashboard --redis-url redis://localhost

        CONQUIET_DASHBOARD_TOKEN=$(openssl rand -hex 24) conquiet dashboard --port 9000
    """
    from conquiet.cli.connections import open_redis
    from conquiet.dashboard.server import Listener, standalone

    with open_redis(redis_url):  # reports a server that cannot be reached
        pass
    listener = Listener(host=host, port=port, token=os.environ.get(TOKEN, ""), allowed_hosts=tuple(allowed_host or ()))
    app = standalone(
        listener,
        redis_url=require_url(redis_url, REDIS),
        db_url=find_url(db_url, DB),
        rabbit_url=find_url(rabbit_url, RABBIT),
        rabbit_api_url=rabbit_api,
        schedule_groups=tuple(group or ("processor",)),
        reveal=reveal,
        outbox=outbox,
        inbox=inbox,
    )
    serve(app, listener)


def serve(app: "Dashboard", listener: "Listener") -> None:
    """Serve until a signal, and print the address once the port is open."""
    from conquiet.dashboard.server import make_server

    server = make_server(app, listener)
    config = server.config
    try:
        socket = config.bind_socket()
    except SystemExit:
        raise CommandError(
            f"the port {config.port} of {config.host} cannot be used", fix="another program listens there; give --port"
        ) from None
    where = socket.getsockname()
    shown = f"[{where[0]}]" if ":" in where[0] else where[0]
    rights = f"log in with ${TOKEN}" if listener.token else f"read-only; set ${TOKEN} for actions"
    typer.echo(f"dashboard: http://{shown}:{where[1]}/ ({rights})")
    server.run(sockets=[socket])
