"""Wait for servers that start later than the application, for a bounded time.

With docker compose, or after a power cut, everything starts at the same time, and often the worker is ready first.
``app.run()`` checks each server that it needs before it reads the first message:

    replies                              continue
    cannot be reached, or still loading  log one warning that names it, and retry until ``wait_s`` has passed
    accepts and never replies            the same: no check takes longer than the wait, or 5 s if that is more
    replies with a refusal               do not wait: a wrong password stays wrong

After the start the engines reconnect to a lost server, by their own settings.

See docs/decisions/0029.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.core.threads import call_in_daemon_thread
from conquiet.errors import QueueError, ServerUnreachableError

logger = FactLogger(__name__)

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_CONNECT_S: Final = 5.0
_SLICE_S: Final = 0.1
"""Longest wait without a check for a stop: ``stop()`` may only assign."""

_THREAD: Final = "conquiet-server-check"
REDIS_TRANSIENT: Final = frozenset(
    {"ConnectionError", "TimeoutError", "BusyLoadingError", "MaxConnectionsError", "MasterNotFoundError"}
)
"""Names of redis-py's errors. ``AuthenticationError`` is a subclass of one of them and is not meant."""

_STARTING_UP: Final = (
    "starting up",
    "not yet accepting connections",
    "recovery mode",
    "server closed the connection",
    "timeout expired",
)
"""Texts of PostgreSQL and libpq while the server starts; the driver has no code for errors of the handshake."""


@dataclass(frozen=True, slots=True)
class ServerCheck:
    """Check that one server can be reached.

    Attributes:
        server: Its address without credentials: "Redis at 10.0.0.5:6379".
        run: Returns None if it replies, and the driver's error if it cannot be reached.
    """

    server: str
    run: Callable[[], Awaitable[Exception | None]]


async def wait_for_servers(checks: Sequence[ServerCheck], wait_s: float, is_stopping: Callable[[], bool]) -> None:
    """Return once all servers reply, or when the app stops. They are checked in turn, with one deadline for all.

    Args:
        checks: The servers.
        wait_s: Longest wait; 0 checks each server once.
        is_stopping: Ends the wait.

    Raises:
        ServerUnreachableError: A server could not be reached in time.
    """
    started = time.monotonic()
    for check in checks:
        await _wait_for_one(check, wait_s, is_stopping, started)


async def _wait_for_one(check: ServerCheck, wait_s: float, is_stopping: Callable[[], bool], started: float) -> None:
    pause_s, is_reported = _FIRST_PAUSE_S, False
    while not is_stopping():
        error = await _run(check, max(time.monotonic() + _CONNECT_S, started + wait_s), is_stopping)
        if is_stopping():
            return
        waited_s = time.monotonic() - started
        if error is None:
            if is_reported:
                facts: dict[str, Any] = {"server": check.server, "waited_s": round(waited_s, 1)}
                logger.info("%(server)s is available after %(waited_s)s s", **facts)
            return
        kind = type(error).__name__
        if waited_s >= wait_s:
            raise ServerUnreachableError(
                f"{check.server} could not be reached within {wait_s:g} s ({kind}): check that it runs and "
                "that the address is right. AppSettings(wait_s=…) waits longer",
                server=check.server,
            ) from error
        if not is_reported:
            is_reported = True
            facts = {"server": check.server, "error": kind, "wait_s": wait_s}
            logger.warning("%(server)s cannot be reached (%(error)s); waiting up to %(wait_s)g s for it", **facts)
        await asyncio.sleep(min(pause_s, wait_s - waited_s))
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


async def _run(check: ServerCheck, deadline: float, is_stopping: Callable[[], bool]) -> Exception | None:
    """Return the result of a check. It is cancelled at the deadline and when the app stops."""
    running = asyncio.ensure_future(check.run())
    try:
        while not running.done() and not is_stopping() and time.monotonic() < deadline:
            await asyncio.wait((running,), timeout=_SLICE_S)
        return running.result() if running.done() else TimeoutError("no answer")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


# ------------------------------------------------------------ the three kinds of server
def check_redis(client: Any) -> ServerCheck:
    """Return a check that pings Redis over a new connection."""

    async def run() -> Exception | None:
        from conquiet.redis_transport.client import clone_async
        from conquiet.redis_transport.client_commands import command

        own = clone_async(client, socket_timeout_s=_CONNECT_S)
        try:
            await command(own, "PING")
        except QueueError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) or type(cause).__name__ in REDIS_TRANSIENT:
                return cause  # type: ignore[return-value]  # an Exception of redis-py
            return None  # a server that refuses is reported by the engine, with facts
        finally:
            await own.aclose()
        return None

    return ServerCheck(f"Redis{_redis_address(client)}", run)


def check_database(engine: Any, check: Callable[[Any], None] | None = None) -> ServerCheck:
    """Return a check that connects to the database; SQLite is always reachable.

    Args:
        engine: The database.
        check: Called with a connection once the database replies. If the database becomes unavailable meanwhile, it is
            retried; if it refuses, the error is raised.
    """

    async def run() -> Exception | None:
        # A daemon thread: at its end asyncio waits for the threads of its pool.
        return await asyncio.wrap_future(call_in_daemon_thread(_THREAD, partial(_connect, engine, check)))

    url = engine.url
    name = url.get_backend_name()
    place = f" at {url.host}:{url.port}" if url.host and url.port else f" at {url.host}" if url.host else ""
    return ServerCheck(printable(f"the database ({name}){place}"), run)


def check_rabbit(url: str) -> ServerCheck:
    """Return a check that connects to the port of RabbitMQ, which the broker opens when it has started."""
    from conquiet.rabbit.address import Address, as_urls

    address = Address(as_urls(url))
    nodes = [address.parameters(number) for number in range(len(address.urls))]

    async def run() -> Exception | None:
        failure: OSError | None = None
        for node in nodes:
            try:
                await asyncio.wrap_future(call_in_daemon_thread(_THREAD, partial(_touch, node.host, node.port)))
            except OSError as error:
                failure = error
            else:
                return None
        return failure

    return ServerCheck("RabbitMQ at " + ", ".join(f"{node.host}:{node.port}" for node in nodes), run)


def _connect(engine: Any, check: Callable[[Any], None] | None) -> Exception | None:
    from sqlalchemy.exc import SQLAlchemyError

    from conquiet.db.errors import OperationInfo, as_write_error

    try:
        with engine.connect() as connection:
            if check is not None:
                check(connection)
            return None
    except SQLAlchemyError as error:
        if _is_not_there(error, engine):
            return error
        if check is None:
            return None  # the first handler reports the refusal
        raise as_write_error(error, OperationInfo("checking the app's tables"), connecting=engine) from error


def _is_not_there(error: Exception, engine: Any) -> bool:
    """Return whether a failure may be temporary. A refused login is not."""
    from conquiet.db.errors import DbErrorKind, fault_of, is_refused_login

    if is_refused_login(error):
        return False
    # A port that accepts and then closes counts as unreachable: it is a proxy (of docker, of a load balancer) without
    # its server.
    is_starting = any(phrase in str(error) for phrase in _STARTING_UP)
    return is_starting or fault_of(error) in {DbErrorKind.GONE, DbErrorKind.UNREACHABLE} or not _answers(engine.url)


def _answers(url: Any) -> bool:
    """Return whether a connection to the address of a URL succeeds. True for a URL without an address (a file)."""
    if not url.host or str(url.host).startswith("/"):
        return True
    port = url.port or {"postgresql": 5432}.get(url.get_backend_name(), 3306)
    try:
        _touch(url.host, port)
    except OSError:
        return False
    return True


def _touch(host: str, port: int) -> None:
    with socket.create_connection((host, port), timeout=_CONNECT_S):
        pass


def _redis_address(client: Any) -> str:
    settings = getattr(getattr(client, "connection_pool", None), "connection_kwargs", {})
    if "path" in settings:
        return f" at {printable(settings['path'])}"
    if "host" in settings:
        return printable(f" at {settings['host']}:{settings.get('port', 6379)}")
    return ""
