"""Wait for servers that start later than the application, for a bounded time.

With docker compose, or after a power cut, everything starts at once and the worker is often first. Each server that
``app.run()`` needs is asked before the first message is read:

    answers                              go on
    cannot be reached, or still loading  one warning that names it, and another try until ``wait_s`` has passed
    answers and refuses                  not waited for: a wrong password does not get right by waiting

After the start a lost server is the engines' business, with settings of their own.

See docs/decisions/0041.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from conquiet.core.clock import SYSTEM_CLOCK, Clock
from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.errors import ServerUnreachableError

logger = FactLogger(__name__)

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_CONNECT_S: Final = 5.0

_REDIS_TRANSIENT: Final = frozenset(
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
"""What PostgreSQL, or libpq, says while it starts; the driver gives no code for an error of the handshake."""


@dataclass(frozen=True, slots=True)
class ServerProbe:
    """Asks one server whether it is there.

    Attributes:
        server: Which one, without credentials: "Redis at 10.0.0.5:6379".
        ask: Returns None if it answers, and the driver's error if it cannot be reached.
    """

    server: str
    ask: Callable[[], Awaitable[Exception | None]]


class ServerWait:
    """Waits for servers, one after the other, with one deadline for all.

    Args:
        wait_s: Longest wait; 0 asks each server once.
        is_stopping: Ends the wait.
        clock: Measures the wait.
    """

    def __init__(self, wait_s: float, is_stopping: Callable[[], bool], clock: Clock = SYSTEM_CLOCK) -> None:
        self._wait_s = wait_s
        self._is_stopping = is_stopping
        self._clock = clock
        self._started = clock.monotonic()

    async def until_up(self, probes: Sequence[ServerProbe]) -> None:
        """Return once all servers answer, or when the app is asked to stop.

        Raises:
            ServerUnreachableError: One could not be reached in time.
        """
        for probe in probes:
            await self._until_one_is_up(probe)

    async def _until_one_is_up(self, probe: ServerProbe) -> None:
        pause_s, is_reported = _FIRST_PAUSE_S, False
        while not self._is_stopping():
            error = await probe.ask()
            waited_s = self._clock.monotonic() - self._started
            if error is None:
                if is_reported:
                    facts: dict[str, Any] = {"server": probe.server, "waited_s": round(waited_s, 1)}
                    logger.info("%(server)s answers after %(waited_s)s s", **facts)
                return
            kind = type(error).__name__
            if waited_s >= self._wait_s:
                raise ServerUnreachableError(
                    f"{probe.server} could not be reached within {self._wait_s:g} s ({kind}): check that it runs and "
                    "that the address is right. AppSettings(wait_s=…) waits longer",
                    server=probe.server,
                ) from error
            if not is_reported:
                is_reported = True
                facts = {"server": probe.server, "error": kind, "wait_s": self._wait_s}
                logger.warning("%(server)s cannot be reached (%(error)s); waiting up to %(wait_s)g s for it", **facts)
            await asyncio.sleep(min(pause_s, self._wait_s - waited_s))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


# ------------------------------------------------------------ the three kinds of server
def probe_redis(client: Any) -> ServerProbe:
    """Return a probe that pings Redis over a connection of its own."""

    async def ask() -> Exception | None:
        from conquiet.redis_transport.client import clone_async

        own = clone_async(client, socket_timeout_s=_CONNECT_S)
        try:
            await own.ping()
        except Exception as error:  # noqa: BLE001 - one that answers and refuses is reported by the engine, with facts
            return error if isinstance(error, OSError) or type(error).__name__ in _REDIS_TRANSIENT else None
        finally:
            await own.aclose()
        return None

    return ServerProbe(f"Redis{_redis_address(client)}", ask)


def probe_database(engine: Any, check: Callable[[Any], None] | None = None) -> ServerProbe:
    """Return a probe that connects to the database; SQLite is always there.

    Args:
        engine: The database.
        check: Called with a connection once the database answers. A database that goes away during the check is waited
            for as well; one that answers and refuses is then an error of the probe.
    """

    async def ask() -> Exception | None:
        return await asyncio.to_thread(_connect, engine, check)

    url = engine.url
    name = url.get_backend_name()
    place = f" at {url.host}:{url.port}" if url.host and url.port else f" at {url.host}" if url.host else ""
    return ServerProbe(printable(f"the database ({name}){place}"), ask)


def probe_rabbit(url: str) -> ServerProbe:
    """Return a probe that connects to the port of RabbitMQ, which it opens when it has started."""
    from conquiet.rabbit.address import Address, as_urls

    address = Address(as_urls(url))
    nodes = [address.parameters(number) for number in range(len(address.urls))]

    async def ask() -> Exception | None:
        failure: OSError | None = None
        for node in nodes:
            try:
                await asyncio.to_thread(_touch, node.host, node.port)
            except OSError as error:
                failure = error
            else:
                return None
        return failure

    return ServerProbe("RabbitMQ at " + ", ".join(f"{node.host}:{node.port}" for node in nodes), ask)


def _connect(engine: Any, check: Callable[[Any], None] | None) -> Exception | None:
    from sqlalchemy.exc import SQLAlchemyError

    from conquiet.db.engine_pool import database_address
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
            return None  # the first handler reports what it refuses
        info, server = OperationInfo("looking for the app's tables"), database_address(engine)
        raise as_write_error(error, info, connecting=True, server=server) from error


def _is_not_there(error: Exception, engine: Any) -> bool:
    """Return whether a failure may end by itself. One that answers and refuses a login does not."""
    from conquiet.db.errors import DbErrorKind, fault_of, is_refused_login

    if is_refused_login(error):
        return False
    # A port that accepts and hangs up does not answer: that is a proxy (of docker, of a load balancer) whose server is
    # not there yet.
    is_starting = any(phrase in str(error) for phrase in _STARTING_UP)
    return is_starting or fault_of(error) in {DbErrorKind.GONE, DbErrorKind.UNREACHABLE} or not _answers(engine.url)


def _answers(url: Any) -> bool:
    """Return whether a connection to the address of a URL succeeds; True where it has none, as a file has."""
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
