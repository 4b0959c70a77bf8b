"""Set up servers, tables and folder of the demo, and remove all of them afterwards."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from conquiet.cli.connections import checked_engine, open_redis
from conquiet.cli.demo.store import Store, open_engine
from conquiet.cli.private_server import private_server
from conquiet.core.redaction import printable, redact_url
from conquiet.errors import ConquietError, QueueError
from conquiet.testing import MySQLServer, RedisServer

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sqlalchemy import Engine

GROUP = "demo"


@dataclass(frozen=True, slots=True)
class DemoEnvironment:
    """Servers, tables and folder of one demo."""

    redis_url: str
    redis_name: str
    server: RedisServer | None
    db_url: str
    db_name: str
    store: Store
    suffix: str
    stream: str
    folder: Path


@contextmanager
def open_environment(
    *, redis_url: str | None, db_url: str | None, mysql: bool, durable: bool
) -> Iterator[DemoEnvironment]:
    """Set everything up, and remove it afterwards.

    Args:
        redis_url: A server to use; None starts a private one.
        db_url: A database to use; None makes an SQLite file, or with ``mysql`` starts a private server.
        mysql: Use MySQL or MariaDB even without ``db_url``.
        durable: The private Redis will be killed and must keep its data.
    """
    suffix = Store.new_suffix()
    with ExitStack() as stack:
        server = None if redis_url else stack.enter_context(_private_redis(durable=durable))
        # The guardian of a private server removes its folder even if this process is killed with -9.
        folder = server.folder if server else Path(stack.enter_context(tempfile.TemporaryDirectory("-conquiet-demo")))
        url = redis_url or (server.url if server else "")
        stream = f"conquiet-demo:{suffix}:orders"
        name = stack.enter_context(_check_redis(url, stream))
        if db_url is None and mysql:
            db_url = stack.enter_context(_private_mysql())
        engine = stack.enter_context(checked_engine(db_url or f"sqlite:///{folder / 'demo.sqlite'}", open_engine))
        store = stack.enter_context(_tables(engine, suffix))
        yield DemoEnvironment(
            redis_url=url,
            redis_name=name,
            server=server,
            db_url=engine.url.render_as_string(hide_password=False),
            db_name=engine.dialect.name,
            store=store,
            suffix=suffix,
            stream=stream,
            folder=folder,
        )


def _private_redis(*, durable: bool) -> "AbstractContextManager[RedisServer]":
    return private_server(
        lambda: RedisServer(aof=durable),
        "no Redis for the demo",
        fix="install one, or pip install 'conquiet[embedded]', or give --redis-url",
    )


@contextmanager
def _private_mysql() -> Iterator[str]:
    fix = "apt-get install mariadb-server (it need not run), or give the URL of a running one with --db-url"
    with private_server(MySQLServer, "no MySQL or MariaDB for the demo", fix=fix) as server:
        yield server.create_database("conquiet_demo")


@contextmanager
def _check_redis(url: str, stream: str) -> Iterator[str]:
    with open_redis(url) as server:
        facts = server.info("server")
        version = facts.get("valkey_version") or facts["redis_version"]
        try:
            yield printable(f"{str(facts.get('server_name', 'redis')).capitalize()} {version} at {redact_url(url)}")
        finally:
            with suppress(QueueError):  # a stopped server has nothing to remove
                server.call("DEL", stream)


@contextmanager
def _tables(engine: "Engine", suffix: str) -> Iterator[Store]:
    store = Store(engine, suffix)
    try:
        store.create()
        yield store
    finally:
        with suppress(ConquietError):  # the same
            store.drop()
