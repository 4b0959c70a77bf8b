"""Run a consumer as a whole process: ``sync_queue`` and ``run_process``. SPEC(004 §1, §6, §7).

These functions own the process: a signal stops it gracefully. An uncaught error, in the loop or in a thread, is logged
and ends the process like a fatal error.
"""

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from conquiet.core.log import FactLogger
from conquiet.core.threads import running_loop
from conquiet.errors import ConquietError, FatalSyncerError, LifecycleError, UncaughtError
from conquiet.rabbit.consumer import RabbitConsumer
from conquiet.rabbit.counters import Counters
from conquiet.rabbit.settings import RabbitSettings, seed_defaults, takes_settings
from conquiet.rabbit.syncer import Syncer
from conquiet.signals import TerminationHandlers, install_termination_handlers

logger = FactLogger(__name__)

_FAILED: Final = 1
_NEVER_CONSUMED: Final = 2


@takes_settings(RabbitSettings)
def sync_queue(url: str | Sequence[str], queue: str, syncer: Syncer, **options: Any) -> Counters:
    """Process a queue by the rules of seed 004 until SIGTERM or SIGINT, then return the counters.

    It accepts the schemas of the original, drops messages past ``max_retries``, and rejects messages that fail twice.
    If the queue has no dead-letter exchange, the broker deletes rejected messages; a warning at the start reports this.
    The options ``schemas``, ``exhausted`` and ``without_dead_letters`` change these three rules. A second signal ends
    the process without waiting for handlers.

    Call it from the main thread, outside any event loop.

    Raises:
        ConfigurationError: A setting is wrong.
        LifecycleError: It was called inside an event loop.
        FatalSyncerError: The syncer broke its contract.
        UncaughtError: Other code raised an error that was not caught.
        RabbitError: The broker cannot be reached, or the queue does not exist.
    """
    _reject_inside_loop("sync_queue")
    return _work(RabbitConsumer(url, queue, syncer, **{**seed_defaults(), **options}))


@takes_settings(RabbitSettings)
def run_process(url: str | Sequence[str], queue: str, syncer: Syncer, **options: Any) -> int:
    """Process a queue of any JSON objects until SIGTERM or SIGINT, and return an exit code.

    It has the options and defaults of ``RabbitConsumer``: no failed message is deleted. Errors are logged.

    0    stopped gracefully
    1    a fatal error of the syncer, a connection that was lost too often, or handlers that did not end in time
    2    it never consumed: a setting is wrong, the broker cannot be reached, or the queue does not exist
    """
    connections: list[object] = []
    try:
        _reject_inside_loop("run_process")
        consumer = RabbitConsumer(url, queue, syncer, **options)
        consumer.on("connected", connections.append)
        count = _work(consumer)
    except ConquietError as error:
        # The first message may break the contract before the connection is announced.
        has_begun = bool(connections) or isinstance(error, FatalSyncerError | UncaughtError)
        code = _FAILED if has_begun else _NEVER_CONSUMED
        logger.failure(logging.CRITICAL, "the process ends with exit code %(exit_code)s", error, exit_code=code)
        return code
    return _FAILED if count.abandoned else 0


def _reject_inside_loop(name: str) -> None:
    if running_loop() is not None:
        raise LifecycleError(f"{name} starts an event loop; inside a running one: await RabbitConsumer(...).run()")


def _work(consumer: RabbitConsumer) -> Counters:
    with install_termination_handlers(consumer.stop) as handlers, _uncaught_in_threads(consumer):
        try:
            return asyncio.run(_run(consumer, handlers))
        except LifecycleError:
            if handlers.received is None:
                raise
            return consumer.count  # stopped before it started


async def _run(consumer: RabbitConsumer, handlers: TerminationHandlers) -> Counters:
    handlers.attach_loop()

    def uncaught(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        _end(consumer, context.get("exception"))

    asyncio.get_running_loop().set_exception_handler(uncaught)
    return await consumer.run()


@contextmanager
def _uncaught_in_threads(consumer: RabbitConsumer) -> Iterator[None]:
    before = threading.excepthook

    def hook(args: Any) -> None:
        _end(consumer, args.exc_value)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


def _end(consumer: RabbitConsumer, error: object) -> None:
    name = type(error).__name__ if isinstance(error, BaseException) else "unknown"
    logger.error("uncaught error, the consumer stops", error=name)
    failure = UncaughtError(f"an uncaught error ended the consumer: {name}", reason=name)
    failure.__cause__ = error if isinstance(error, BaseException) else None
    consumer.fail(failure)
