"""Query the servers for pages, in separate threads and with a time limit for each query.

A server that does not reply raises ``DashboardServerError``, and the page shows it as unavailable. For a second after
that every query fails immediately, so that a page with ten queries does not wait ten times.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Final, TypeVar

from conquiet.core.redaction import redact_url
from conquiet.dashboard.settings import DashboardSettings
from conquiet.errors import ConfigurationError, ConquietError, QueueError
from conquiet.management.async_redis import AsyncRedisAdmin
from conquiet.management.database_view import DatabaseView, connect_database
from conquiet.management.rabbit_queues import RabbitView
from conquiet.management.redis_admin import PacedRedisAdmin, RedisAdmin

T = TypeVar("T")

_REST_S: Final = 1.0
_THREADS: Final = 8
_SLOW_S: Final = 3_600.0


class DashboardServerError(Exception):
    """A server did not reply, or refused the connection.

    Attributes:
        server: Kind of server, such as ``Redis``.
        address: Its address without a password.
        reason: The reason in a few words, without values of the driver's message.
    """

    def __init__(self, server: str, address: str, reason: str) -> None:
        super().__init__(f"{server} at {address} is unavailable: {reason}")
        self.server = server
        self.address = address
        self.reason = reason


class Servers:
    """The servers of one dashboard. Connections are opened when first needed.

    Args:
        settings: Addresses and time limits.
    """

    def __init__(self, settings: DashboardSettings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="conquiet-dashboard")
        self._admin = RedisAdmin.from_url(settings.redis_url, timeout_s=settings.timeout_s)
        self._async: tuple[asyncio.AbstractEventLoop, AsyncRedisAdmin] | None = None
        self._database: DatabaseView | None = None
        self._unavailable: dict[str, tuple[float, DashboardServerError]] = {}
        self._closing = threading.Event()

    @property
    def is_cluster(self) -> bool:
        """True if the Redis is a Redis Cluster."""
        return self._admin.is_cluster

    async def redis(self, work: Callable[[RedisAdmin], T]) -> T:
        """Return ``work(admin)``, run in a thread."""
        return await self._query("Redis", self._settings.redis_name, lambda: self._in_thread(lambda: work(self._admin)))

    async def redis_slowly(self, work: Callable[[RedisAdmin], T], *, per_s: float) -> T:
        """Return ``work(admin)``, run in a separate thread at ``per_s`` commands per second, for at most an hour."""
        paced = PacedRedisAdmin.from_url(self._settings.redis_url, timeout_s=self._settings.timeout_s)
        paced.limit(per_s, self._closing)

        def run() -> T:
            with paced:
                return work(paced)

        return await self._query("Redis", self._settings.redis_name, lambda: asyncio.to_thread(run), limit_s=_SLOW_S)

    async def redis_async(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Return ``await work(client)`` with an asyncio client."""
        return await self._query("Redis", self._settings.redis_name, lambda: work(self.async_client()))

    async def database(self, work: Callable[[DatabaseView], T]) -> T:
        """Return ``work(view)``, run in a thread."""
        address = redact_url(self._settings.db_url)
        return await self._query("the database", address, lambda: self._in_thread(lambda: work(self._open_database())))

    async def rabbit(self, work: Callable[[RabbitView], T]) -> T:
        """Return ``work(view)``, run in a thread."""
        address = redact_url(self._settings.rabbit_url)
        return await self._query("RabbitMQ", address, lambda: self._in_thread(lambda: work(self._rabbit)))

    async def rabbit_async(self, work: Callable[[RabbitView], Awaitable[T]], *, limit_s: float) -> T:
        """Return ``await work(view)`` with a longer time limit than a page, for work such as a replay."""
        address = redact_url(self._settings.rabbit_url)
        return await self._query("RabbitMQ", address, lambda: work(self._rabbit), limit_s=limit_s)

    def _open_database(self) -> DatabaseView:
        if self._database is None:
            settings = self._settings
            engine = connect_database(settings.db_url, timeout_s=settings.timeout_s)
            self._database = DatabaseView(engine, inbox=settings.inbox, outbox=settings.outbox)
        return self._database

    @cached_property
    def _rabbit(self) -> RabbitView:
        return RabbitView(self._settings.rabbit_url, self._settings.rabbit_api_url)

    def async_client(self) -> Any:
        """Return the asyncio client of Redis for the running event loop."""
        loop = asyncio.get_running_loop()
        if self._async is None or self._async[0] is not loop:
            self._async = loop, AsyncRedisAdmin(self._settings.redis_url, timeout_s=self._settings.timeout_s)
        return self._async[1].client

    async def close(self) -> None:
        """Close all connections."""
        self._closing.set()
        if self._async is not None and self._async[0] is asyncio.get_running_loop():
            await self._async[1].close()
        if self._database is not None:
            await self._in_thread(self._database.close)
        self._admin.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _query(
        self, server: str, address: str, work: Callable[[], Awaitable[T]], *, limit_s: float | None = None
    ) -> T:
        unavailable = self._unavailable.get(server)
        if unavailable is not None and time.monotonic() - unavailable[0] < _REST_S:
            raise unavailable[1]
        try:
            async with asyncio.timeout(limit_s or 2 * self._settings.timeout_s):
                result = await work()
        except (ConfigurationError, DashboardServerError):
            raise
        except Exception as error:
            translated = _as_unavailable(error, server, address)
            if translated is None:
                raise
            self._unavailable[server] = time.monotonic(), translated
            raise translated from error
        self._unavailable.pop(server, None)
        return result


def _as_unavailable(error: Exception, server: str, address: str) -> DashboardServerError | None:
    """Return a ``DashboardServerError`` if the server cannot be used; None for another error."""
    cause = error.__cause__ or error
    if isinstance(error, TimeoutError):
        return DashboardServerError(server, address, "no answer in time")
    if isinstance(error, QueueError):
        refused = type(cause).__name__ in {"ResponseError", "NoPermissionError", "DataError"}
        return None if refused else DashboardServerError(server, address, _reason(cause))
    if isinstance(error, OSError) or type(error).__module__.startswith("sqlalchemy"):
        return DashboardServerError(server, address, _reason(cause))
    if isinstance(error, ConquietError) and isinstance(cause, OSError):
        return DashboardServerError(server, address, _reason(cause))
    return None


def _reason(error: BaseException) -> str:
    # A driver's error message may quote a statement with its values, so only its class is shown.
    return {"ConnectionError": "it refused the connection", "TimeoutError": "no answer in time"}.get(
        type(error).__name__, type(error).__name__
    )
