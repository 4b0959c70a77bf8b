"""``conquiet doctor``: check the configured servers."""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from conquiet.cli.connections import check_broker, open_database, open_redis
from conquiet.cli.errors import FAILED, NOT_DONE, CannotConnectError, CommandError, fix_of, report_error
from conquiet.cli.option_types import number_option
from conquiet.cli.output import make_console, print_json
from conquiet.cli.settings import (
    DB,
    RABBIT,
    REDIS,
    AsJson,
    DbUrl,
    RabbitApiUrl,
    RabbitUrl,
    RedisUrl,
    find_api_url,
    find_url,
)
from conquiet.errors import ConquietError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from conquiet.management.doctor.database import PoolPlan
    from conquiet.management.doctor.findings import Finding
    from conquiet.management.doctor.retention import RedeliverySource

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def doctor(
    redis_url: RedisUrl = "",
    db_url: DbUrl = "",
    rabbit_url: RabbitUrl = "",
    rabbit_api: RabbitApiUrl = "",
    queue: Annotated[list[str] | None, typer.Option(help="A RabbitMQ queue that must exist. Repeatable.")] = None,
    connections: Annotated[
        int, typer.Option(min=0, help="Most database connections of all your pools; 0: unknown.")
    ] = 0,
    pool: Annotated[
        int, typer.Option(min=0, help="Most connections of one process (pool_size + max_overflow); 0: unknown.")
    ] = 0,
    processes: Annotated[int, typer.Option(min=1, help="Processes on each host, with --pool.")] = 1,
    hosts: Annotated[int, typer.Option(min=1, help="Number of hosts, with --pool.")] = 1,
    concurrency: Annotated[
        int, typer.Option(min=0, help="Concurrent handlers (or batches) of a process, with --pool; 0: unknown.")
    ] = 0,
    max_lag: Annotated[int, typer.Option(min=1, help="Most undelivered entries of a group.")] = 10_000,
    max_deliveries: Annotated[int, typer.Option(min=1, help="Most deliveries of an entry.")] = 20,
    inbox_retention_s: Annotated[
        float, number_option("Retention of inbox rows in your workers, in seconds.", least=1)
    ] = 2_592_000,
    notes: Annotated[bool, typer.Option("--notes", help="Also show informational findings.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check the configured servers and report problems with reason and fix. Changes nothing.

    Exit codes: 0 no error found (warnings do not count), 1 an error was found, 2 a server could not be reached,
    or refused the examination.

    Examples:
        conquiet doctor --redis-url redis://localhost

        CONQUIET_DB_URL=mysql+pymysql://app@db/shop conquiet doctor --json
    """
    from conquiet.management.doctor.database import PoolPlan
    from conquiet.management.doctor.findings import Severity

    examinations: dict[str, Callable[[], list[Finding]]] = {}
    if find_url(redis_url, REDIS):
        examinations["redis"] = lambda: _redis(redis_url, max_lag, max_deliveries)
    if find_url(db_url, DB):
        plan = PoolPlan(pool, processes, hosts, concurrency) if pool else None
        wanted = connections or (0 if plan is None else plan.connections)
        examinations["database"] = lambda: _database(db_url, redis_url, plan, wanted, inbox_retention_s)
    if find_url(rabbit_url, RABBIT):
        examinations["rabbitmq"] = lambda: _rabbit(rabbit_url, rabbit_api, tuple(queue or ()))
    if not examinations:
        raise CommandError(
            "there is nothing to examine: no URL was given",
            fix=f"give --redis-url, --db-url or --rabbit-url, or set {REDIS}, {DB}, {RABBIT}",
        )
    found: list[Finding] = []
    unreachable: list[str] = []
    for what, examine in examinations.items():
        try:
            found += examine()
        except (CommandError, ConquietError) as error:
            # Examine the other servers: one server that is down, or refuses a command, must not hide their problems.
            report_error(str(error), fix_of(error))
            unreachable.append(what)
    examined = [what for what in examinations if what not in unreachable]
    if as_json:
        print_json({"examined": examined, "unreachable": unreachable, "findings": [one.as_dict() for one in found]})
    else:
        _show([one for one in found if notes or one.severity is not Severity.NOTE], examined)
    if unreachable:
        raise typer.Exit(NOT_DONE)
    if any(one.severity is Severity.ERROR for one in found):
        raise typer.Exit(FAILED)


def _redis(flag: str, max_lag: int, max_deliveries: int) -> "list[Finding]":
    with open_redis(flag) as server:
        from conquiet.management.doctor.redis import RedisLimits, examine_redis

        return examine_redis(server, RedisLimits(max_lag=max_lag, max_deliveries=max_deliveries))


def _database(flag: str, redis_flag: str, plan: "PoolPlan | None", wanted: int, retention_s: float) -> "list[Finding]":
    from sqlalchemy.exc import SQLAlchemyError

    from conquiet.management.doctor.database import examine_pools
    from conquiet.management.doctor.retention import examine_inbox

    sources = _redelivery_sources(redis_flag)
    with open_database(flag) as engine:
        try:
            return [
                *_server_of(engine, wanted),
                *([] if plan is None else examine_pools(plan)),
                *examine_inbox(engine, sources, retention_s=retention_s),
            ]
        except SQLAlchemyError as error:
            raise CannotConnectError("the database", find_url(flag, DB), error) from error


def _server_of(engine: "Engine", wanted: int) -> "list[Finding]":
    from conquiet.management.doctor.database import examine_schema
    from conquiet.management.doctor.findings import Finding
    from conquiet.management.doctor.mysql import examine_mysql
    from conquiet.management.doctor.postgres import examine_postgres

    match engine.dialect.name:
        case "mysql" | "mariadb":
            return examine_mysql(engine, wanted_connections=wanted)
        case "postgresql":
            return examine_postgres(engine, wanted_connections=wanted)
        case kind:
            unsuitable = Finding.warning(
                "database.dialect",
                f"the database is {kind}",
                "SQLite has one writer at a time and is for demos and tests",
                "use MySQL 8, MariaDB 10.6 or PostgreSQL 13, or newer",
            )
            return [unsuitable, *(examine_schema(engine) if kind == "sqlite" else ())]


def _redelivery_sources(flag: str) -> "tuple[RedeliverySource, ...]":
    from conquiet.management.doctor.retention import find_redelivery_sources

    if find_url(flag, REDIS):
        # The examination of Redis reports an unreachable Redis.
        with suppress(CommandError, ConquietError), open_redis(flag) as server:
            return find_redelivery_sources(server)
    return ()


def _rabbit(flag: str, api_flag: str, queues: tuple[str, ...]) -> "list[Finding]":
    from conquiet.management.doctor.rabbit import examine_rabbit
    from conquiet.rabbitmq_api import RabbitApiError, vhost_of

    # Workers use AMQP: a reachable management API does not prove that the AMQP port and login work.
    check_broker(flag)
    url = find_url(flag, RABBIT)
    api_url = find_api_url(api_flag, url)
    try:
        return examine_rabbit(api_url, vhost_of(url), queues=queues)
    except RabbitApiError as error:
        reason = PermissionError("access denied") if error.login_refused else error.__cause__ or error
        raise CannotConnectError("the management API of RabbitMQ", api_url, reason) from error


def _show(found: "list[Finding]", examined: list[str]) -> None:
    console = make_console()
    for one in found:
        severity = one.severity.value
        if sys.stdout.isatty():
            from rich.text import Text

            console.print(Text(f"{severity.upper():<8}", _STYLES[severity]), Text(one.what), sep="")
            console.print(Text(f"        why: {one.why}\n        fix: {one.fix}", "dim"))
        else:
            typer.echo(f"{severity.upper():<8}{one.check}: {one.what}\n        why: {one.why}\n        fix: {one.fix}")
    if not found and examined:
        typer.echo(f"{', '.join(examined)}: nothing found")
