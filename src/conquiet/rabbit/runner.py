"""``sync_queue``: the consumer as the whole job of a process. SPEC(004 §1, §6, §7).

Here, and only here, the process belongs to us: signals lead to a graceful end, and an error that nobody caught (in the
loop or in a thread) is logged and ends the process like a fatal one.
"""

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Unpack

from conquiet.errors import ConquietError, LifecycleError, UncaughtError
from conquiet.rabbit.config import RabbitOptions
from conquiet.rabbit.consumer import RabbitConsumer
from conquiet.rabbit.counters import Counters
from conquiet.rabbit.syncer import Syncer
from conquiet.signals import install_termination_handlers

logger = logging.getLogger(__name__)


def sync_queue(url: str | Sequence[str], queue: str, syncer: Syncer, **options: Unpack[RabbitOptions]) -> Counters:
    """Process a queue until SIGTERM or SIGINT, then return the counters. A second signal ends the process at once.

    Call it from the main thread, outside any event loop.

    Raises:
        ConfigurationError: A setting is wrong.
        LifecycleError: It was called inside an event loop.
        FatalSyncerError: The syncer broke its contract.
        UncaughtError: Something else raised and nobody caught it.
        RabbitError: The broker or the queue is not there.
    """
    with suppress(RuntimeError):  # there is no loop, as it should be
        asyncio.get_running_loop()
        raise LifecycleError("sync_queue has an event loop of its own; inside one: await RabbitConsumer(...).run()")
    consumer = RabbitConsumer(url, queue, syncer, **options)
    with install_termination_handlers(consumer.stop) as handlers, _uncaught_in_threads(consumer):
        try:
            return asyncio.run(_run(consumer))
        except LifecycleError:
            if handlers.received is None:
                raise
            return consumer.count  # told to stop before it had begun


def run_process(url: str | Sequence[str], queue: str, syncer: Syncer, **options: Unpack[RabbitOptions]) -> int:
    """Do the same and return an exit code: 0 after a graceful end, 1 after anything fatal, which is logged."""
    try:
        sync_queue(url, queue, syncer, **options)
    except ConquietError as error:
        logger.critical("%s", error, extra={"error": type(error).__name__})  # our own texts hold no payload
        return 1
    return 0


async def _run(consumer: RabbitConsumer) -> Counters:
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
    logger.error("uncaught error, the consumer stops", extra={"error": name})
    failure = UncaughtError(f"an error that nobody caught ended the consumer: {name}", reason=name)
    failure.__cause__ = error if isinstance(error, BaseException) else None
    consumer.fail(failure)
