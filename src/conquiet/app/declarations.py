"""The decorators of an application, and its resources. Nothing is opened or sent here."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from conquiet.app.events import Upgrade
from conquiet.app.registry import Registry
from conquiet.app.resources import Factory, Scope
from conquiet.core.batching import batch_settings
from conquiet.core.lifecycle import AsyncLifecycle
from conquiet.core.validation import require_text
from conquiet.errors import ConfigurationError

if TYPE_CHECKING:
    from conquiet.processor.policy import RateLimit, RetryPolicy
    from conquiet.scheduler.entries import CatchUp, When

F = TypeVar("F", bound=Callable[..., Any])
U = TypeVar("U", bound=Upgrade)


class Declarations:
    """The part of ``App`` that is called while modules are imported.

    Args:
        registry: Keeps the declarations.
        life: The lifecycle of the app: after its start nothing can be declared.
        stream: The app's stream.
    """

    def __init__(self, registry: Registry, life: AsyncLifecycle, stream: str) -> None:
        self.registry = registry
        self._life = life
        self._stream = stream

    def handler(  # noqa: PLR0913 - what a user may set, by keyword
        self,
        event: str,
        *,
        retry: "RetryPolicy | None" = None,
        timeout_s: float | None = None,
        concurrency: int | None = None,
        rate: "RateLimit | None" = None,
        once: bool = True,
        batch: int | None = None,
        within_s: float | None = None,
        share_transaction: int | None = None,
    ) -> Callable[[F], F]:
        """Handle an event with the decorated function, and return the function unchanged.

        Its parameters get their values by annotation: a payload model, a session, ``JobContext``, ``Emit``, a logger,
        or a type given to ``provide``. With a session its effect happens once per message, because the inbox row is in
        the same transaction.

        Args:
            event: The event; each has one handler.
            retry: The retry policy; left out, the policy of the settings, which by default does not retry.
            timeout_s: Longest run in seconds.
            concurrency: Maximum concurrent runs on this host.
            rate: Maximum starts per time, over all hosts.
            once: False writes no inbox row. The handler still has its transaction, and a message that is delivered
                twice has its effect twice.
            batch: Maximum messages of one call. The function gets lists: ``list[Order]``, and ``list[JobContext]`` for
                contexts. With a session they share one transaction, and a message that fails is found by halving.
            within_s: Deadline from the arrival of the first message of a batch or shared transaction to its commit,
                0.02 s if left out. Messages are gathered for this time minus the duration of the last batches, and
                for half of it at least.
            share_transaction: Maximum number of calls that share one transaction; each runs in a savepoint. For a
                function of single messages. It must do nothing outside of its session: if the transaction fails, all
                of them run again.
        """
        from conquiet.processor.policy import require_event

        self._life.require_new("handlers")
        require_event(event)
        if batch is not None and share_transaction is not None:
            raise ConfigurationError(
                f"the handler of {event!r} has batch= and share_transaction=: a batch handler gets lists, the other is "
                "for functions of single messages. Leave one of them out"
            )
        size = batch if share_transaction is None else share_transaction
        batch_settings(size, within_s)  # raises here, where the handler is declared
        options = {
            "retry": retry,
            "timeout_s": timeout_s,
            "concurrency": concurrency,
            "rate": rate,
            "batch": size,
            "within_s": within_s,
        }
        shares = share_transaction is not None

        def register(function: F) -> F:
            self.registry.add_handler(event, function, options, once=once, shares_transaction=shares)
            return function

        return register

    def queue(
        self,
        name: str,
        *,
        once: bool = True,
        batch: int | None = None,
        within_s: float | None = None,
        **options: Any,
    ) -> Callable[[F], F]:
        """Handle the messages of a RabbitMQ queue with the decorated function.

        If the handler fails, the message is requeued once and then dead-lettered, by the rules of ``RabbitConsumer``.
        If the payload does not fit, or the handler raises ``Reject``, it is dead-lettered immediately.

        Args:
            name: A queue that exists.
            once: As for ``handler``. The AMQP property ``message_id`` identifies the message.
            batch: Maximum messages of one call, which gets ``list[Order]``. With a session they share one transaction;
                a message that fails is found by halving and settled alone. The prefetch is raised, so that the next
                batch is delivered while one is handled.
            within_s: Deadline from the arrival of the first message of a batch to its commit, 0.02 s if left out.
                Messages are gathered for this time minus the duration of the last batches, and for half of it at least.
            options: Options of ``RabbitConsumer``; see ``RabbitSettings``.
        """
        from conquiet.rabbit.settings import RabbitSettings

        self._life.require_new("queues")
        require_text("name", name)
        if batch is not None or within_s is not None:
            options |= {"batch": batch, "within_s": within_s}
        try:
            RabbitSettings(**options)
        except TypeError as error:
            raise ConfigurationError(f"queue {name!r} has an option that does not exist: {error}") from None

        def register(function: F) -> F:
            self.registry.add_queue(name, function, options, once=once)
            return function

        return register

    def schedule(
        self,
        when: "When",
        *,
        name: str | None = None,
        retry: "RetryPolicy | None" = None,
        timeout_s: float | None = None,
        catch_up: "CatchUp" = "one",
        once: bool = True,
    ) -> Callable[[F], F]:
        """Run the decorated function at given times, once per time over all hosts.

        Args:
            when: ``Cron``, ``Every`` or ``Once``.
            name: Identifies the schedule; the function's name if left out.
            retry: As for ``handler``.
            timeout_s: As for ``handler``.
            catch_up: Decides about times that passed while no host was running; see ``ScheduleEntry``.
            once: As for ``handler``.
        """
        from conquiet.scheduler.entries import ScheduleEntry

        self._life.require_new("schedules")
        # Raises here, where the schedule is declared: @app.schedule without parentheses would declare nothing.
        ScheduleEntry("schedule" if name is None else name, when, "schedule", self._stream, catch_up=catch_up)

        def register(function: F) -> F:
            own = function.__name__ if name is None else name
            entry = ScheduleEntry(own, when, f"schedule:{own}", self._stream, catch_up=catch_up)
            self.registry.add_schedule(entry, function, {"retry": retry, "timeout_s": timeout_s}, once=once)
            return function

        return register

    def declare(self, event: str, model: Any = None, *, stream: str | None = None) -> None:
        """Declare an event that another service handles, so that it can be emitted here.

        Args:
            event: The event.
            model: Its payload model; None accepts any payload.
            stream: The stream of the other service; this app's if left out. This app acknowledges messages
                of the event in its own stream without running a handler.
        """
        from conquiet.processor.policy import require_event

        self._life.require_new("declared events")
        self.registry.events.add(require_event(event), model)
        self.registry.streams[event] = self._stream if stream is None else require_text("stream", stream)

    def upgrade(self, event: str, version: int) -> Callable[[U], U]:
        """Upgrade payloads of an old version with the decorated function, from ``version`` to the next one.

        An event with upgrades carries its version in the payload's key ``_version``; a payload without it is of
        version 1.
        """

        def register(function: U) -> U:
            self.registry.events.add_upgrade(event, version, function)
            return function

        return register

    def provide(self, kind: Any, factory: Factory, *, scope: Scope = "message") -> None:
        """Declare the factory of a type for parameters of handlers. Call it before these handlers are registered.

        Args:
            kind: The type.
            factory: A plain function, an ``async def`` or a generator with the clean-up after ``yield``. Its parameters
                may be other provided types.
            scope: ``"message"`` makes an object per message, ``"process"`` keeps one until ``close()``.
        """
        self.registry.resources.provide(kind, factory, scope=scope)

    def override(self, kind: Any, value: Any) -> AbstractContextManager[None]:
        """Use ``value`` for a provided type while the ``with`` block runs: for tests."""
        return self.registry.resources.override(kind, value)
