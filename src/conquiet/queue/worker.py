"""A consumer together with its handler: one object that ``conquiet worker`` or an application can run.

``QueueWorker`` satisfies ``core.lifecycle.Worker``.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from conquiet.core.closing import ClosedAfterUse
from conquiet.core.deduplicator import Deduplicator
from conquiet.core.lifecycle import Health, Lifecycle
from conquiet.core.validation import require_instance
from conquiet.queue.consumer import QueueConsumer
from conquiet.queue.outage import Outage
from conquiet.queue.runner import MessageRunner, OnMalformed, QueueHandler

if TYPE_CHECKING:
    from sqlalchemy import Engine


class QueueWorker(ClosedAfterUse):
    """Runs ``consumer.run`` with a handler, an engine and an inbox.

    ``run()`` blocks its thread. ``stop()`` and ``health()`` may be called from other threads, and ``stop()`` from a
    signal handler.

    Args:
        consumer: Reads the messages. ``close()`` closes it. Its name must be unique among live processes: with
            ``recover`` two of one name would handle each other's messages.
        handler: Does the work of one message with the session it gets.
        engine: Source of sessions; never closed here.
        inbox: Makes the effect of a message happen once.
        on_malformed: Called with each entry that breaks the format, instead of raising its error.
        recover: Begin with the messages that are pending under the consumer's name, and wait while a server that the
            handler needs is unavailable; see ``QueueConsumer.run``. On by default here: a worker that is restarted
            after a failure has to find the message that failed.

    Raises:
        ConfigurationError: One of the arguments cannot work. Nothing was read.
    """

    def __init__(
        self,
        consumer: QueueConsumer,
        *,
        handler: QueueHandler,
        engine: "Engine",
        inbox: Deduplicator | None = None,
        on_malformed: OnMalformed | None = None,
        recover: bool = True,
    ) -> None:
        self.consumer = require_instance("consumer", consumer, QueueConsumer)
        self._runner = MessageRunner(consumer, handler, engine, on_malformed=on_malformed, inbox=inbox)
        self._outage = Outage(consumer.config) if recover else None
        self._lifecycle = Lifecycle("this QueueWorker")

    @property
    def name(self) -> str:
        """Name of the consumer."""
        return self.consumer.name

    def run(self) -> None:
        """Handle messages until ``stop()``. Raises what ``QueueConsumer.run`` raises. Runs once."""
        self._lifecycle.start()
        try:
            self.consumer.run_with(self._runner, self._outage)
        finally:
            self._lifecycle.finish()

    def stop(self) -> None:
        """Request the stop; a second call forces it. See ``QueueConsumer.stop``."""
        self._lifecycle.request_stop()
        self.consumer.stop()

    def health(self) -> Health:
        """Report whether the worker handles messages now. Never raises; sends nothing."""
        return replace(self.consumer.health(), status=self._lifecycle.status)

    def close(self) -> None:
        """Stop, wait for the end, and close the consumer; see ``QueueConsumer.close``. May be called twice."""
        self._lifecycle.stop()
        self.consumer.close()

    @property
    def abandoned(self) -> int:
        """Always 0: ``run()`` returns only after its handler has ended."""
        return self.consumer.abandoned
