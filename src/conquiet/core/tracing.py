"""The place where tracing is installed. Without it nothing is imported, and a message costs one check of ``active``.

``conquiet.otel.instrument()`` puts an implementation here. Engines, emitters and relays call it; they know no
OpenTelemetry. What travels with a message are ``headers``: names and texts, in the envelope, in AMQP headers or in the
row of the outbox.

See docs/decisions/0059.
"""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self

from conquiet.errors import ConfigurationError

Headers = Mapping[str, str]

_MOST_HEADERS = 32
_LONGEST = 1_024


class BatchMember(NamedTuple):
    """One message of a batch, as its span links to it.

    Attributes:
        message_id: Its id.
        headers: What travelled with it, if anything.
        first_attempt: Context of its first attempt, if this is a later one.
    """

    message_id: str | None
    headers: Headers | None = None
    first_attempt: str | None = None


class Span(Protocol):
    """One operation. As a context manager it is current inside the block, and ends with it."""

    @property
    def is_dropped(self) -> bool:
        """True if the trace is sampled out: attributes go nowhere."""
        ...

    @property
    def headers(self) -> dict[str, str]:
        """What is to travel with the message: the caller's headers, and the context of this span."""
        ...

    def set(self, name: str, value: object) -> None:
        """Set an attribute."""
        ...

    def fail(self, error: BaseException) -> None:
        """Mark the operation as failed. The text of the error is not recorded."""
        ...

    def __enter__(self) -> Self:
        """Make it current."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        ...


class Tracing(Protocol):
    """Makes spans. No method raises."""

    @property
    def traces_roots(self) -> bool:
        """False if a span without a sender is certainly dropped, and counted by no metric."""
        ...

    def dropped(self, headers: Headers | None) -> Callable[[], None] | None:
        """Return what makes the span of a handler current, if it is certainly not recorded and no metric counts it.

        Nothing makes it current no longer: for a caller whose context variables end with the message.
        """
        ...

    def enter_worker(self) -> None:
        """Make dropped spans current once for all messages of the worker whose context this is."""
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
        """Begin to publish: a producer's span. ``parent`` are headers whose context is the parent."""
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
        """Begin to run a handler: a consumer's span. A ``batch`` is linked, message by message."""
        ...

    def settle(self, system: str, destination: str, *, operation: str, message_id: str | None = None) -> Span:
        """Begin to settle a message at its broker: a client's span."""
        ...

    def inject(self, headers: Headers | None) -> dict[str, str] | None:
        """Return the headers with the current context; None if there is neither."""
        ...

    def note(self, name: str, value: object) -> None:
        """Set an attribute of the current span."""
        ...


active: Tracing | None = None
"""The installed tracing; None, the default, traces nothing."""


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing."""


NO_SPAN: Final = NoSpan()


class BatchSpan:
    """The span of one batch: one operation that is linked to each of its messages. Does nothing without tracing.

    Args:
        system: The broker's kind.
        destination: Stream or queue.
        members: Returns the messages; called only if tracing is installed.
        event: Their event, if they have one in common.
        group: The consumer group.
    """

    __slots__ = ("_span",)

    def __init__(
        self,
        system: str,
        destination: str,
        members: Callable[[], Sequence[BatchMember]],
        *,
        event: str | None = None,
        group: str | None = None,
    ) -> None:
        self._span: Span = (
            NO_SPAN
            if active is None
            else active.process(system, destination, event=event, group=group, batch=members())
        )

    @property
    def context(self) -> str | None:
        """The context of the span, as a later attempt links to it."""
        return self._span.headers.get("traceparent")

    def record(self, outcomes: Sequence[BaseException | None]) -> None:
        """Note how many messages have failed; the first failure is the error of the span."""
        failed = [outcome for outcome in outcomes if outcome is not None]
        self._span.set("conquiet.batch.failed", len(failed))
        if failed:
            self._span.fail(failed[0])

    def __enter__(self) -> Self:
        self._span.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._span.__exit__(kind, error, trace)


def install(tracing: Tracing | None) -> None:
    """Use this tracing from now on, in the whole process; None removes it."""
    global active  # noqa: PLW0603 - one place for the process
    active = tracing


def note(name: str, value: Any) -> None:
    """Set an attribute of the current span, if there is one."""
    if active is not None:
        active.note(name, value)


def inject(headers: Headers | None) -> dict[str, str] | None:
    """Return the headers that a message gets that is written now: the caller's, and the current context."""
    if active is not None:
        return active.inject(headers)
    return None if headers is None else dict(headers)


def require_headers(headers: object) -> dict[str, str] | None:
    """Return headers if they are a mapping of short names to short texts.

    Raises:
        ConfigurationError: They are something else. No value is quoted.
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
    """Return the headers of a message that any producer may have written; what is no text is left out."""
    if not isinstance(found, Mapping):
        return None
    read = {name: value for name, value in found.items() if isinstance(name, str) and isinstance(value, str)}
    return read or None
