"""The tracing interface. Without an implementation nothing is imported, and a message costs one check of ``active``.

``conquiet.otel.instrument()`` installs an implementation. Engines, emitters and relays call it and do not import
OpenTelemetry. The trace context is in the ``headers`` of a message: names and strings, stored in the envelope, in AMQP
headers or in the outbox row.

See docs/decisions/0058.
"""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self

from conquiet.errors import ConfigurationError

Headers = Mapping[str, str]

_MOST_HEADERS = 32
_LONGEST = 1_024


class BatchMember(NamedTuple):
    """One message of a batch, for a link of the batch span.

    Attributes:
        message_id: Its id.
        headers: Its headers, if any.
        first_attempt: Trace context of the first attempt, if this is a later attempt.
    """

    message_id: str | None
    headers: Headers | None = None
    first_attempt: str | None = None


class Span(Protocol):
    """One operation. As a context manager, it is the current span inside the block and ends with it."""

    @property
    def is_dropped(self) -> bool:
        """True if the trace is sampled out: attributes are not recorded."""
        ...

    @property
    def headers(self) -> dict[str, str]:
        """The headers for the message: the caller's headers and the context of this span."""
        ...

    def set(self, name: str, value: object) -> None:
        """Set an attribute."""
        ...

    def fail(self, error: BaseException) -> None:
        """Mark the operation as failed. The text of the error is not recorded."""
        ...

    def __enter__(self) -> Self:
        """Make this the current span."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the span."""
        ...


class Tracing(Protocol):
    """Creates spans. No method raises."""

    @property
    def traces_roots(self) -> bool:
        """False if a span without a parent is certainly dropped and counted by no metric."""
        ...

    def enter_worker(self) -> None:
        """Make dropped spans current in the context of a worker, once for all of its messages."""
        ...

    def covers(self, headers: Headers | None) -> bool:
        """Return True if ``enter_worker`` was enough: the span of a message is dropped, and no metric counts it.

        Otherwise a handler in this context needs ``process``.
        """
        ...

    def send(
        self,
        system: str,
        destination: str,
        *,
        event: str | None = None,
        message_id: str | None = None,
        headers: Headers | None = None,
        parent: Headers | None = None,
        count: int | None = None,
    ) -> Span:
        """Start a producer span. The context in the headers ``parent`` is its parent."""
        ...

    def process(  # noqa: PLR0913 - facts of a message
        self,
        system: str,
        destination: str,
        *,
        message_id: str | None = None,
        event: str | None = None,
        group: str | None = None,
        attempt: int | None = None,
        headers: Headers | None = None,
        first_attempt: str | None = None,
        batch: Sequence[BatchMember] | None = None,
    ) -> Span:
        """Start a consumer span for a handler. Each message of a ``batch`` is linked."""
        ...

    def settle(self, system: str, destination: str, *, operation: str, message_id: str | None = None) -> Span:
        """Start a client span for settling a message at its broker."""
        ...

    def inject(self, headers: Headers | None) -> dict[str, str] | None:
        """Return the headers with the current context. None if both are missing."""
        ...

    def note(self, name: str, value: object) -> None:
        """Set an attribute of the current span."""
        ...


active: Tracing | None = None
"""The installed tracing. None, the default, traces nothing."""


class NoSpan:
    """The span of an operation that is not traced."""

    __slots__ = ()
    is_dropped: Final = True
    headers: Final[dict[str, str]] = {}

    def set(self, name: str, value: object) -> None:
        """Do nothing."""

    def fail(self, error: BaseException) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


NO_SPAN: Final = NoSpan()


def batch_span(
    system: str,
    destination: str,
    members: Callable[[], Sequence[BatchMember]],
    *,
    event: str | None = None,
    group: str | None = None,
) -> Span:
    """Return the span of one batch, linked to each of its messages.

    Args:
        system: The kind of broker.
        destination: Stream or queue.
        members: Returns the messages. Called only if tracing is installed.
        event: Their common event, if there is one.
        group: The consumer group.
    """
    if active is None:
        return NO_SPAN
    return active.process(system, destination, event=event, group=group, batch=members())


def record_batch(span: Span, outcomes: Sequence[BaseException | None]) -> None:
    """Record the number of failed messages of a batch. The first failure is the error of the span."""
    failed = [outcome for outcome in outcomes if outcome is not None]
    span.set("conquiet.batch.failed", len(failed))
    if failed:
        span.fail(failed[0])


def install(tracing: Tracing | None) -> None:
    """Install the tracing of the whole process. None removes it."""
    global active  # noqa: PLW0603 - one setting for the process
    active = tracing


def note(name: str, value: Any) -> None:
    """Set an attribute of the current span, if there is one."""
    if active is not None:
        active.note(name, value)


def inject(headers: Headers | None) -> dict[str, str] | None:
    """Return the headers for a message that is written now: the caller's headers and the current context."""
    if active is not None:
        return active.inject(headers)
    return None if headers is None else dict(headers)


def require_headers(headers: object) -> dict[str, str] | None:
    """Return headers if they are a mapping of short names to short strings.

    Raises:
        ConfigurationError: The headers are invalid. No value is quoted.
    """
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise ConfigurationError("headers must be a mapping of names to texts")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str) or len(name) + len(value) > _LONGEST:
            raise ConfigurationError(f"headers must be names and texts of at most {_LONGEST} characters together")
    if len(headers) > _MOST_HEADERS:
        raise ConfigurationError(f"there can be at most {_MOST_HEADERS} headers, got {len(headers)}")
    return dict(headers)


def read_headers(found: object) -> dict[str, str] | None:
    """Return the headers of a message from any producer. Values that are not strings are left out."""
    if not isinstance(found, Mapping):
        return None
    read = {name: value for name, value in found.items() if isinstance(name, str) and isinstance(value, str)}
    return read or None
