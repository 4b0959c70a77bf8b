"""``App``: one object from the first handler to production.

It composes ``Processor``, ``Scheduler``, ``RabbitConsumer`` and ``OutboxRelay``, which decide about messages, and adds
no promise.

    @app.handler ─┐                       ┌─▶ Processor ─────▶ Invocation ─▶ the function, in a transaction
    @app.schedule ┼─▶ Registry ─▶ run() ──┼─▶ Scheduler
    @app.queue ───┘                       ├─▶ RabbitConsumer ─▶ Invocation
    app.emit ──▶ Emission ─▶ outbox ──────┴─▶ OutboxRelay ───▶ Redis
                     └──▶ Redis
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from conquiet.app.assembly import Assembly, Part
from conquiet.app.emitting import EmittingApp
from conquiet.app.parameters import SessionKind
from conquiet.app.server_wait import wait_for_servers
from conquiet.app.settings import AppSettings
from conquiet.core.background import BackgroundWorker
from conquiet.core.lifecycle import AsyncLifecycle, Health, Status
from conquiet.core.threads import running_loop
from conquiet.core.validation import require_instance, require_positive, require_seconds, require_text
from conquiet.core.worker_pool import current_worker
from conquiet.errors import LifecycleError

if TYPE_CHECKING:
    from sqlalchemy import MetaData
    from sqlalchemy.ext.asyncio import AsyncSession

    from conquiet.app.database import AnyDatabase
    from conquiet.app.worker_group import WorkerGroup
    from conquiet.core.decode_function import Decode
    from conquiet.redis_transport.client import AnyRedis


class App(BackgroundWorker, EmittingApp):
    """An application: its handlers, schedules and queues, and the servers they run on.

    A server that is not given is taken from the environment (``CONQUIET_REDIS_URL``, ``CONQUIET_DB_URL``,
    ``CONQUIET_RABBIT_URL``) or from ``conquiet.toml``. Connections are opened on first use.

    Args:
        name: Name of the service.
        redis: URL or client of Redis, for handlers, schedules and emit.
        database: URL, ``Engine``, ``sessionmaker``, ``AsyncEngine`` or ``async_sessionmaker``, for handlers with a
            session and for emit in a transaction. A URL serves plain functions and ``async def`` alike.
        rabbit: URL of RabbitMQ, for queues.
        stream: The Redis stream of its events; the name if left out.
        group: The consumer group; the name if left out.
        concurrency: Maximum concurrent handlers in each process, and of each queue.
        tables: SQLAlchemy ``MetaData`` with tables of the application, which ``create_tables``, 'conquiet db init' and
            'conquiet dev' create in addition to inbox and outbox.
        decode: Reads entries that other programs write into the stream with several plain fields: a function from
            names and values (bytes) to ``{"event": …, "data": {…}}``, and ``"id"`` if the entry has one. None accepts
            messages of conquiet only.
        settings: All other settings.

    Attributes:
        name: Name of the service.
        registry: The declarations.
        assembly: Builds the workers from the declarations.
        emission: Sends messages.

    Raises:
        ConfigurationError: An argument is wrong.
    """

    def __init__(  # noqa: PLR0913 - what a user may set, by keyword
        self,
        name: str,
        *,
        redis: "str | AnyRedis | None" = None,
        database: "AnyDatabase | None" = None,
        rabbit: str | None = None,
        stream: str | None = None,
        group: str | None = None,
        concurrency: int = 1,
        tables: "MetaData | None" = None,
        decode: "Decode | None" = None,
        settings: AppSettings | None = None,
    ) -> None:
        self.name = require_text("name", name)
        settings = AppSettings() if settings is None else require_instance("settings", settings, AppSettings)
        stream = require_text("stream", name if stream is None else stream)
        self.assembly = Assembly(
            settings,
            redis=redis,
            database=database,
            rabbit=rabbit,
            stream=stream,
            group=require_text("group", name if group is None else group),
            decode=decode,
            tables=tables,
        )
        super().__init__(self.assembly.registry, AsyncLifecycle(f"app {name!r}"), stream)
        self.emission = self.assembly.emission
        self._concurrency = require_positive("concurrency", concurrency)
        self._wait_s = settings.wait_s
        self._workers: WorkerGroup | None = None

    def __repr__(self) -> str:
        return f"App({self.name!r}, {self._life.status.value})"

    # ------------------------------------------------------------ transaction
    @asynccontextmanager
    async def transaction(self) -> "AsyncIterator[AsyncSession]":
        """Open an ``AsyncSession`` on the app's database; commit it at the end, or roll it back after an error.

        For requests: ``async with app.transaction() as session: … await app.emit(…, session=session)``.
        """
        maker = self.assembly.database.source_for(SessionKind.ASYNC_SESSION)
        async with maker.begin() as session:
            yield session

    # ------------------------------------------------------------ tables
    def create_tables(self) -> None:
        """Create the tables of inbox and outbox and the application's ``tables``, unless they exist."""
        self.assembly.create_tables()

    def migrate_tables(self, *, dry_run: bool = False) -> tuple[str, ...]:
        """Bring inbox and outbox to the layout of this version of conquiet; return the statements.

        Args:
            dry_run: Return the statements and run none.
        """
        from conquiet.transactional.migrations import migrate_tables

        engine = self.assembly.database.sync_engine()
        return migrate_tables(engine, **self.assembly.table_names, dry_run=dry_run)

    # ------------------------------------------------------------ run
    async def run(self, only: Iterable[Part] | None = None) -> None:
        """Run until ``stop()``: handlers and queues, the relay and the scheduler.

        Args:
            only: ``"handlers"``, ``"relay"``, ``"scheduler"``, or several of them; all that the app has if left out.

        Raises:
            ConfigurationError: A part cannot be run: no handler, no server, a missing table.
            ServerUnreachableError: A server could not be reached within ``wait_s``.
            Exception: The first failure of a part. The others were stopped before.
        """
        self._life.start()
        try:
            self._workers = workers = self.assembly.workers(only, self._concurrency)
            try:
                await wait_for_servers(self.assembly.server_checks(), self._wait_s, lambda: self._life.is_stopping)
                if not self._life.is_stopping:
                    await workers.run()
            except LifecycleError:
                if not self._life.is_stopping:  # stopped between the check and the start of the workers
                    raise
            finally:
                await workers.close()
        finally:
            self._life.stop()
            try:
                await self._release()
            finally:
                self._life.finish()

    def main(self, only: Iterable[Part] | None = None) -> None:
        """Run as the main program of a process, until SIGTERM or SIGINT. A second signal aborts running handlers.

        Call it from the main thread, outside any event loop. It raises what ``run()`` raises.
        """
        from conquiet.signals import install_termination_handlers

        if running_loop() is not None:
            raise LifecycleError("App.main starts an event loop; inside a running one: await app.run()")
        with install_termination_handlers(self.stop, self.stop) as handlers:

            async def run() -> None:
                handlers.attach_loop()
                await self.run(only)

            asyncio.run(run())

    def stop(self) -> None:
        """Request the stop: running handlers finish. A second call aborts them. May be called from a signal handler."""
        self._life.request_stop()
        if self._workers is not None:
            self._workers.stop()

    def _end(self) -> None:
        """Stop without counting as a call of ``stop()``."""
        self._life.stop()
        if self._workers is not None:
            self._workers.end()

    def set_only(self, only: Iterable[str]) -> None:
        """Choose the parts that ``run()`` runs. ``conquiet worker --only`` calls it."""
        self._life.require_new("parts")
        self.assembly.only = self.assembly.parts(only)

    def set_concurrency(self, concurrency: int) -> None:
        """Change the maximum of concurrent handlers. ``conquiet worker --concurrency`` calls it."""
        self._life.require_new("concurrency")
        self._concurrency = require_positive("concurrency", concurrency)

    def set_wait_s(self, wait_s: float) -> None:
        """Change how long ``run()`` waits for servers. ``conquiet worker`` sets 0, because its supervisor waits."""
        self._life.require_new("wait_s")
        self._wait_s = require_seconds("wait_s", wait_s, zero_allowed=True)

    def health(self) -> Health:
        """Return whether all parts do their work now. Never raises, and sends nothing to a server."""
        if self._workers is None:
            return Health(status=self._life.status, reason="starting", handled=0)
        return replace(self._workers.health(), status=self._life.status)

    @property
    def abandoned(self) -> int:
        """Handlers that did not end within the grace period."""
        return 0 if self._workers is None else self._workers.abandoned

    async def close(self) -> None:
        """Stop if it runs, wait for the end, and release what was opened for emit, handlers and resources.

        It may be called twice, and emit may follow: that opens new connections. Called by a handler of the app it only
        stops.
        """
        if self._life.status is Status.RUNNING:
            self._end()
        if self._life.status is Status.STOPPING and current_worker() is not None:
            return  # the end waits for this handler, and run() releases
        await self._life.wait_ended()
        await self._release()

    async def _release(self) -> None:
        await self.registry.resources.close()
        await self.assembly.close()

    @asynccontextmanager
    async def lifespan(self, _asgi: Any = None) -> AsyncIterator[None]:
        """Serve as the lifespan of a Starlette or FastAPI application that emits: ``FastAPI(lifespan=app.lifespan)``.

        The connections of ``emit`` are closed at the end. Handlers are not run here.
        """
        self.registry.events.require_complete()
        try:
            yield
        finally:
            await self.close()
