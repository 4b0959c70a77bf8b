"""What an application declares: the decorators and the resources. Nothing is opened or sent here."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from conquiet.app.events import Upgrade
from conquiet.app.registry import HandlerOptions, Registry
from conquiet.app.resources import Factory, Scope
from conquiet.core.batching import batch_settings
from conquiet.core.lifecycle import Lifecycle
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
        registry: Keeps what is declared.
        life: Declaring ends with the start.
        stream: The app's stream.
    """

    def __init__(self, registry: Registry, life: Lifecycle, stream: str) -> None:
        self._registry = registry
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
        group: int | None = None,
    ) -> Callable[[F], F]:
        """Handle an event with the decorated function, which stays as it is.

        Its parameters get their values by annotation: a payload model, a session, ``JobContext``, ``Emit``, a logger,
        or a type given to ``provide``. With a session its effect happens once for each message, because the inbox row
        is in the same transaction.

        Args:
            event: The event; each has one handler.
            retry: When to try again; the policy of the settings if left out, which is not at all.
            timeout_s: Longest run in seconds.
            concurrency: Most runs at once on this host.
            rate: Most starts in a time, over all hosts.
            once: False leaves the inbox row out. The handler still has its transaction, and a message that is delivered
                twice has its effect twice.
            batch: Call the function with up to so many messages: ``list[Order]``, and ``list[JobContext]`` if it asks
                for them. With a session they share one transaction, and one that fails is found by halving.
            within_s: Within which time the first message of a batch or group has its effect, 0.02 s if left out.
                It waits for others, but less by as long as the last batches took, and at least half of that time.
            group: Let up to so many calls of a function for single messages share one transaction, each in a savepoint.
                Safe if the function does nothing outside of its session: when the transaction fails, all run again.
        """
        from conquiet.processor.policy import require_event

        self._life.require_new("handlers")
        require_event(event)
        if batch is not None and group is not None:
            raise ConfigurationError(
                f"the handler of {event!r} has batch= and group=: a batch handler gets lists, a group calls a function "
                "for single messages. Leave one of them out"
            )
        options = HandlerOptions(
            retry=retry,
            timeout_s=timeout_s,
            concurrency=concurrency,
            rate=rate,
            batch=batch_settings(batch if group is None else group, within_s),
            is_group=group is not None,
        )

        def register(function: F) -> F:
            self._registry.add_handler(event, function, options, once=once)
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

        A message whose handler fails is requeued once and then dead-lettered, by the rules of ``RabbitConsumer``. One
        whose payload does not fit, or whose handler raises ``Reject``, is dead-lettered at once.

        Args:
            name: A queue that exists.
            once: As for ``handler``. The AMQP property ``message_id`` identifies the message.
            batch: Call the function with up to so many messages: ``list[Order]``. With a session they share one
                transaction; one that fails is found by halving and settled by itself. The prefetch follows: the next
                batch is delivered while one is handled.
            within_s: Within which time the first message of a batch has its effect, 0.02 s if left out. It waits for
                others, but less by as long as the last batches took, and at least half of that time.
            options: Options of ``RabbitConsumer``; see ``RabbitConfig``.
        """
        from conquiet.rabbit.config import RabbitConfig

        self._life.require_new("queues")
        require_text("name", name)
        if batch is not None or within_s is not None:
            options |= {"batch": batch, "within_s": within_s}
        try:
            RabbitConfig(**options)
        except TypeError as error:
            raise ConfigurationError(f"queue {name!r} has an option that does not exist: {error}") from None

        def register(function: F) -> F:
            self._registry.add_queue(name, function, options, once=once)
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
        """Run the decorated function at given times, each time once over all hosts.

        Args:
            when: ``Cron``, ``Every`` or ``Once``.
            name: Identifies the schedule; the function's name if left out.
            retry: As for ``handler``.
            timeout_s: As for ``handler``.
            catch_up: What happens to times that passed while no host ran; see ``ScheduleEntry``.
            once: As for ``handler``.
        """
        from conquiet.scheduler.entries import ScheduleEntry

        self._life.require_new("schedules")
        options = HandlerOptions(retry=retry, timeout_s=timeout_s)

        def register(function: F) -> F:
            own = function.__name__ if name is None else name
            entry = ScheduleEntry(own, when, f"schedule:{own}", self._stream, catch_up=catch_up)
            self._registry.add_schedule(entry, function, options, once=once)
            return function

        return register

    def declare(self, event: str, model: Any = None, *, stream: str | None = None) -> None:
        """Declare an event that another service handles, so that it can be emitted here.

        Args:
            event: The event.
            model: Its payload model; None accepts any payload.
            stream: The stream of the other service; this app's if left out. There this app acknowledges its messages
                without running anything.
        """
        from conquiet.processor.policy import require_event

        self._life.require_new("declared events")
        self._registry.events.add(require_event(event), model)
        self._registry.streams[event] = self._stream if stream is None else require_text("stream", stream)

    def upgrade(self, event: str, version: int) -> Callable[[U], U]:
        """Upgrade payloads of an old version with the decorated function, from ``version`` to the next one.

        An event with upgrades carries its version in the payload's key ``_version``; a payload without it is of
        version 1.
        """

        def register(function: U) -> U:
            self._registry.events.add_upgrade(event, version, function)
            return function

        return register

    def provide(self, kind: Any, factory: Factory, *, scope: Scope = "message") -> None:
        """Declare how a type is made that handlers ask for; before the handlers that do.

        Args:
            kind: The type.
            factory: Plain, ``async def`` or a generator, whose part after ``yield`` is the clean-up. It may ask for
                other provided types.
            scope: ``"message"`` makes one for each message, ``"process"`` keeps one until ``close()``.
        """
        self._registry.resources.provide(kind, factory, scope=scope)

    def override(self, kind: Any, value: Any) -> AbstractContextManager[None]:
        """Give handlers ``value`` for a provided type as long as the ``with`` block runs: for tests."""
        return self._registry.resources.override(kind, value)
