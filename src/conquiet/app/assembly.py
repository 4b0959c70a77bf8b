"""Build the workers of an application from its declarations, and open its servers on first use."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from conquiet.app.batch_invocation import BatchInvocation
from conquiet.app.bus import Bus, RedisBus
from conquiet.app.database import Database, require_tables
from conquiet.app.database_check import check_for
from conquiet.app.emission import Emission
from conquiet.app.invocation import HandlerEnvironment
from conquiet.app.parameters import SessionKind
from conquiet.app.registry import Handler, Registry
from conquiet.app.server_wait import ServerCheck, check_database, check_rabbit, check_redis
from conquiet.app.settings import AppSettings, missing_server, redis_client, require_one_decode, url_or, with_decode
from conquiet.app.worker_group import WorkerGroup
from conquiet.core.clock import SYSTEM_CLOCK, Clock
from conquiet.core.server_urls import DB, RABBIT, REDIS
from conquiet.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import MetaData

    from conquiet.core.decode_function import Decode
    from conquiet.core.lifecycle import Worker
    from conquiet.processor.partitioned import PartitionedProcessor
    from conquiet.processor.processor import Processor
    from conquiet.redis_transport.client import AnyRedis
    from conquiet.transactional.outbox import Outbox
    from conquiet.transactional.relay import OutboxRelay
    from conquiet.transactional.targets import Target, ToProcessor

Part = Literal["handlers", "relay", "scheduler"]
_PARTS: Final[tuple[Part, ...]] = get_args(Part)


class Assembly:
    """The servers and workers of an application.

    Args:
        settings: The app's settings.
        redis: URL or client, or None.
        database: URL, engine or session maker, or None.
        rabbit: URL, or None.
        stream: The app's stream.
        group: Its consumer group.
        decode: Reads entries of other programs; None refuses them.
        tables: Tables of the application, or None.

    Attributes:
        registry: The declarations.
        only: Parts to run if ``run()`` names none.
        clock: The source of the time.
        emission: Sends messages.
    """

    def __init__(
        self,
        settings: AppSettings,
        *,
        redis: Any,
        database: Any,
        rabbit: Any,
        stream: str,
        group: str,
        decode: "Decode | None" = None,
        tables: "MetaData | None" = None,
    ) -> None:
        self.registry = Registry(self._require_session)
        self._settings = settings
        self.stream = stream
        self.group = group
        self.table_names = {"inbox": settings.inbox, "outbox": settings.outbox}
        self._own_tables = tables
        self.decode = require_one_decode(decode, settings)
        self._rabbit: str | None = url_or(rabbit, RABBIT)
        given_redis = url_or(redis, REDIS)
        self._redis: AnyRedis | None = None if given_redis is None else redis_client(given_redis)
        given_database = url_or(database, DB)
        self._database = None if given_database is None else Database(given_database)
        self._bus: Bus | None = None
        self._outbox: Outbox | None = None
        self._targets: list[ToProcessor] = []
        self._tables: set[str] = set()
        self._needs: set[str] = set()
        self._processor: Processor | PartitionedProcessor | None = None
        self.only: frozenset[Part] | None = None
        self.clock: Clock = SYSTEM_CLOCK
        self.emission = Emission(self.registry.events, self)

    # ------------------------------------------------------------ servers
    @property
    def bus(self) -> Bus:
        """The bus for messages outside of a transaction."""
        if self._bus is None:
            self._bus = RedisBus(
                self._require_redis("emit sends to Redis"),
                self.stream,
                self.processor_settings,
                is_partitioned=self._is_partitioned,
            )
        return self._bus

    @bus.setter
    def bus(self, bus: Bus | None) -> None:
        self._bus = bus

    @property
    def outbox(self) -> "Outbox":
        """The outbox for messages of a transaction."""
        if self._outbox is None:
            from conquiet.transactional.outbox import Outbox

            self._require_redis("a relay publishes what is emitted in a transaction")
            self._outbox = Outbox(self._settings.outbox)
        return self._outbox

    @outbox.setter
    def outbox(self, outbox: "Outbox | None") -> None:
        self._outbox = outbox

    @property
    def database(self) -> Database:
        """The app's database.

        Raises:
            ConfigurationError: There is none.
        """
        if self._database is None:
            raise missing_server("database", "database", DB, "a session or a table is asked for")
        return self._database

    @property
    def has_database(self) -> bool:
        """True if a database was given."""
        return self._database is not None

    @property
    def processor_settings(self) -> Any:
        """Settings of the processor."""
        from conquiet.processor.settings import ProcessorSettings

        return ProcessorSettings() if self._settings.processor is None else self._settings.processor

    def _require_session(self, kind: SessionKind, name: str, what: str) -> None:
        """Raise ``ConfigurationError`` if handlers cannot have this kind of session."""
        if self._database is None:
            raise missing_server("database", "database", DB, f"parameter {name!r} of the {what} is a {kind.value}")
        self._database.require(kind, name=name, what=what)

    def create_tables(self) -> None:
        """Create the tables of inbox and outbox and the application's tables, unless they exist."""
        from conquiet.transactional.migrations import create_tables

        engine = self.database.sync_engine()
        create_tables(engine, **self.table_names)
        if self._own_tables is not None:
            self._own_tables.create_all(engine)

    def server_checks(self) -> list[ServerCheck]:
        """Return a check of each server that the assembled workers need.

        The check of the database raises ``ConfigurationError`` if a table is missing. It is the first one, so that
        this is reported without waiting for the brokers.
        """
        found: list[ServerCheck] = []
        if DB in self._needs:
            check = partial(require_tables, tables=self._tables) if self._tables else None
            found.append(check_database(self.database.sync_engine(), check))
        if REDIS in self._needs and self._redis is not None:
            found.append(check_redis(self._redis))
        if RABBIT in self._needs and self._rabbit is not None:
            found.append(check_rabbit(self._rabbit))
        return found

    async def close(self) -> None:
        """Close all connections. The next use opens them again."""
        bus, self._bus = self._bus, None
        if bus is not None:
            await bus.close()
        targets, self._targets = self._targets, []
        for target in targets:
            target.close()
        if self._database is not None:
            await self._database.close()

    # ------------------------------------------------------------ workers
    def parts(self, only: Iterable[str] | None) -> frozenset[Part]:
        """Return the parts to run.

        Raises:
            ConfigurationError: A part does not exist.
        """
        if only is None:
            return self.only or frozenset(_PARTS)
        requested = frozenset(only)
        chosen: frozenset[Part] = frozenset(part for part in _PARTS if part in requested)
        unknown = sorted(map(str, requested - chosen))
        if unknown or not chosen:
            got = f", got {unknown[0]!r}" if unknown else ""
            raise ConfigurationError(f"only must be some of {', '.join(_PARTS)}{got}")
        return chosen

    def workers(self, only: Iterable[Part] | None, concurrency: int) -> WorkerGroup:
        """Return the workers of these parts. Sends nothing.

        Raises:
            ConfigurationError: A part cannot be run.
        """
        chosen = self.parts(only)
        is_explicit = only is not None or self.only is not None
        self.registry.events.require_complete()
        self._tables, self._needs = set(), set()
        if self._database is not None:
            self._database.concurrency = concurrency
        workers: list[Worker] = []
        if "handlers" in chosen:
            workers += self._handlers(concurrency, self.environment(asyncio.get_running_loop()))
        if "scheduler" in chosen and (self.registry.schedules or is_explicit):
            workers.append(self._scheduler())
        if "relay" in chosen and (is_explicit or (self.has_database and self._redis is not None)):
            workers.append(self._relay())
        purgers = self._purgers()
        if self._tables:  # some part needs the database
            workers += check_for(self.database.sync_engine)
        return WorkerGroup(workers, background=purgers)

    def environment(self, loop: asyncio.AbstractEventLoop) -> HandlerEnvironment:
        """Return the shared environment of the handlers on a loop."""
        return HandlerEnvironment(
            resources=self.registry.resources,
            emission=self.emission,
            database=lambda: self.database,
            inbox=self._settings.inbox,
            loop=loop,
        )

    def _handlers(self, concurrency: int, environment: HandlerEnvironment) -> "list[Worker]":
        if not self.registry.handlers and not self.registry.queues:
            raise ConfigurationError(
                "the app has no handler, so there is nothing to run: register one with @app.handler(event), "
                "@app.schedule(when) or @app.queue(name)"
            )
        workers: list[Worker] = []
        if self.registry.handlers:
            self._processor = self._new_processor(concurrency, environment)
            workers.append(self._processor)
        syncers = self.syncers(environment)
        for name, queue in self.registry.queues.items():
            from conquiet.rabbit.consumer import RabbitConsumer

            if self._rabbit is None:
                raise missing_server("RabbitMQ", "rabbit", RABBIT, f"queue {name!r} has a handler")
            self._needs.add(RABBIT)
            options = {"concurrency": concurrency, **queue.options}
            workers.append(RabbitConsumer(self._rabbit, name, syncers[name], **options))
        return workers

    def _purgers(self) -> "list[Worker]":
        """Return the purgers of the tables in use, if a synchronous engine can reach them."""
        if self._settings.retention is None or not self._tables:
            return []
        from conquiet.transactional.inbox import Inbox
        from conquiet.transactional.outbox import Outbox
        from conquiet.transactional.purging import DatabaseRetention, Purger

        retention = self._settings.retention
        keep = DatabaseRetention() if retention == "default" else retention
        try:
            engine = self.database.sync_engine()
        except (ConfigurationError, ImportError):
            return []  # an in-memory database of an asynchronous engine, or no synchronous driver
        busy = self._processor
        options: dict[str, Any] = {
            "retention": keep,
            "is_idle": lambda: busy is None or not busy.health().in_flight,
        }
        # One purger per table, each with its own lock: hosts that run different parts exclude each other as well.
        found: list[Worker] = []
        if self._settings.inbox in self._tables:
            found.append(Purger(engine, inbox=Inbox(self._settings.inbox), **options))
        if self._settings.outbox in self._tables and keep.parked_s is not None:
            found.append(Purger(engine, outbox=Outbox(self._settings.outbox), **options))
        return found

    def _new_processor(self, concurrency: int, environment: HandlerEnvironment) -> "Processor | PartitionedProcessor":
        from conquiet.processor.partitioned import PartitionedProcessor
        from conquiet.processor.processor import Processor

        redis = self._require_redis("handlers read from Redis")
        options: dict[str, Any] = {
            "concurrency": concurrency,
            "group": self.group,
            "settings": self.processor_settings,
            "runtime": with_decode(self._settings.runtime, self.decode),
        }
        processor = (
            PartitionedProcessor(redis, self.stream, partitions=self._settings.partitions, **options)
            if self._is_partitioned
            else Processor(redis, [self.stream], **options)
        )
        for event, function in self.functions(environment).items():
            processor.handler(event, **self.registry.handlers[event].options)(function)
        for event, stream in self.registry.streams.items():
            if stream == self.stream:
                processor.handler(event)(_leave_to_others)
        return processor

    def functions(self, environment: HandlerEnvironment) -> "dict[str, Callable[[Any], Any]]":
        """Return the functions for a processor, by event."""
        return {event: self._function(handler, environment) for event, handler in self.registry.handlers.items()}

    def _function(self, handler: Handler, environment: HandlerEnvironment) -> "Callable[[Any], Any]":
        invocation = self._invocation(handler, environment)
        if handler.shares_transaction:
            return invocation.for_processor_shared_transaction()
        return invocation.for_processor_batch() if handler.takes_lists else invocation.for_processor()

    def syncers(self, environment: HandlerEnvironment) -> "dict[str, Callable[[Any], Any]]":
        """Return the functions for RabbitMQ consumers, by queue."""
        found = {}
        for name, queue in self.registry.queues.items():
            invocation = self._invocation(queue, environment)
            found[name] = invocation.for_rabbit_batch() if queue.takes_lists else invocation.for_rabbit()
        return found

    def relay(self, targets: "Mapping[str, Target]") -> "OutboxRelay":
        """Return a relay from the app's outbox to these targets, by stream."""
        from conquiet.transactional.outbox import Outbox
        from conquiet.transactional.relay import OutboxRelay

        outbox = Outbox(self._settings.outbox)
        return OutboxRelay(self.database.sync_engine(), targets, outbox=outbox, poll_s=self._settings.relay_poll_s)

    def stream_of(self, event: str) -> str:
        """Return the stream of an event."""
        return self.registry.streams.get(event, self.stream)

    @property
    def streams(self) -> list[str]:
        """All streams that messages are emitted to."""
        return sorted({self.stream, *self.registry.streams.values()})

    def _invocation(self, handler: Handler, environment: HandlerEnvironment) -> BatchInvocation:
        if handler.signature.session is not None:
            self._needs.add(DB)
        if handler.needs_inbox:
            self._tables.add(self._settings.inbox)
        return BatchInvocation(handler.function, handler.signature, handler.event, environment, once=handler.once)

    def _scheduler(self) -> "Worker":
        from conquiet.scheduler.scheduler import Scheduler

        if not self.registry.schedules:
            raise ConfigurationError("the app has no schedule to run: register one with @app.schedule(when)")
        return Scheduler(
            self._require_redis("schedules are kept in Redis"),
            list(self.registry.schedules.values()),
            group=self.group,
            job_ttl_s=self.processor_settings.job_ttl_s,
        )

    def _relay(self) -> "Worker":
        from conquiet.transactional.targets import ToPartitions, ToProcessor

        redis = self._require_redis("the relay publishes to Redis")
        targets = {stream: ToProcessor(redis, stream) for stream in self.streams}
        if self._is_partitioned:
            targets[self.stream] = ToPartitions(redis, self.stream)
        self._targets += targets.values()
        self._tables.add(self._settings.outbox)
        self._needs.add(DB)
        return self.relay(targets)

    @property
    def _is_partitioned(self) -> bool:
        return self._settings.partitions > 1

    def _require_redis(self, why: str) -> "AnyRedis":
        if self._redis is None:
            raise missing_server("Redis", "redis", REDIS, why)
        self._needs.add(REDIS)
        return self._redis


async def _leave_to_others(_ctx: Any) -> None:
    """Acknowledge a message that another group handles."""
