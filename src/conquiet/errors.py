"""Every error conquiet raises on purpose, and what state the world is in when it does.

    ConquietError
    ├── ConfigurationError (ValueError)      a setting is wrong; nothing was sent anywhere
    ├── MissingExtraError (ImportError)      an optional dependency is not installed
    ├── LifecycleError                       called in the wrong order; nothing was done
    ├── OperatorError                        an operator's request was refused; nothing was changed
    │   ├── NoSuchStreamError                ... because there is no such stream, group or consumer
    │   └── WrongKeyTypeError                ... because the key holds something else than a stream
    ├── MessageKeyError (ValueError)         the inbox cannot tell this message from others; nothing was run
    ├── DbWriteError                         a write failed and left nothing behind
    │   ├── CommitUnknownError               the reply to COMMIT was lost: it may have happened
    │   ├── ConflictError                    somebody else was first; rolled back, worth a new attempt
    │   └── LockedWriteError                 also a LockAcquisitionError: the writer did not get its lock
    ├── LockAcquisitionError                 a lock was not had; nothing was written
    │   ├── LockTimeoutError                 ... because somebody held it for too long
    │   └── NoSuchRowError                   ... because there is no row to lock
    ├── HandlerTimeoutError (TimeoutError)   a handler took longer than it may; cancelled, or running on in its thread
    ├── QueueError                           Redis refused or did not answer
    │   ├── PayloadError (ValueError)        a payload that cannot become a message; nothing was sent
    │   ├── MalformedMessageError            an entry that is not one of ours; it stays pending
    │   ├── GroupMissingError                the consumer group (or its stream) is gone
    │   ├── LeaseLostError                   the message is, or may be, in other hands by now
    │   └── DeliveriesExhaustedError         delivered too often; not run again, still pending
    └── RabbitError                          RabbitMQ refused, went away or did not answer
        ├── RabbitConnectionError            no connection, or it was lost more often than allowed
        ├── QueueMissingError                the queue is not there; it is never created for you
        ├── FatalSyncerError                 the syncer broke its contract; its message is unsettled
        ├── UncaughtError                    an error that nobody caught ended the process in good order
        └── PublishError                     not confirmed: the message may or may not be in the queue
            └── ReturnedMessageError         ... because no queue wanted it: it is certainly in none

Messages are built from facts that are safe to log: names from the configuration, error
numbers, message ids. A payload, a bound parameter or a credential is never in ``str()`` or
``repr()`` of one of these. The driver's own error is kept as ``__cause__`` only.

All of them survive pickling, because they cross process borders: every fact is a keyword
with a default, so that an error can be rebuilt from its message alone and then given its
facts back.
"""


class ConquietError(Exception):
    """Base of all errors of this library."""


class ConfigurationError(ConquietError, ValueError):
    """A setting is wrong. Raised before any I/O, so nothing has happened yet."""


class MissingExtraError(ConquietError, ImportError):
    """A part of conquiet was used whose optional dependency is not installed."""

    def __init__(self, message: str, *, extra: str | None = None) -> None:
        super().__init__(message)
        self.extra = extra


class LifecycleError(ConquietError):
    """Something was used before its start, after its end, or twice. The call did nothing."""


class OperatorError(ConquietError):
    """An operator asked for something that is not possible or not safe now. Nothing was changed."""

    def __init__(self, message: str, *, stream: str | None = None) -> None:
        super().__init__(message)
        self.stream = stream


class NoSuchStreamError(OperatorError):
    """There is no such stream, or it has no such group or consumer."""


class WrongKeyTypeError(OperatorError):
    """The key holds something else than a stream. It was not touched."""


class MessageKeyError(ConquietError, ValueError):
    """A message has no key that an inbox could know it by. Its handler was not run, and it stays where it is."""


class DbWriteError(ConquietError):
    """A database write failed. Its transaction was rolled back: nothing of it is visible.

    The exception to that rule is its own class, ``CommitUnknownError``.

    Attributes:
        completed: Out of ``execute_many`` only: how many operations before this one are committed.
    """

    completed: int | None = None

    def __init__(
        self,
        message: str,
        *,
        table: str | None = None,
        operation: str | None = None,
        errno: int | None = None,
    ) -> None:
        super().__init__(message)
        self.table = table
        self.operation = operation
        self.errno = errno


class CommitUnknownError(DbWriteError):
    """COMMIT was sent and its reply was lost: the write may or may not be there.

    So it is with a statement that commits itself, and whatever came in place of the reply: a lost connection, or an
    exception of the caller's own that broke the call off.

    Do not acknowledge a message on it and do not call the write failed. Whoever handles the
    message next finds out, by the row itself or by an inbox row of the same transaction.
    """


class ConflictError(DbWriteError):
    """Another transaction was first: a stale version, a deadlock or a lock wait that ran out.

    The transaction was rolled back as a whole. A *new* transaction may succeed.
    """


class LockAcquisitionError(ConquietError):
    """A lock was not had, so nothing was written."""

    def __init__(
        self,
        message: str,
        *,
        resource: str | None = None,
        waited_s: float | None = None,
        holder: str | None = None,
    ) -> None:
        super().__init__(message)
        self.resource = resource
        self.waited_s = waited_s
        self.holder = holder


class LockTimeoutError(LockAcquisitionError):
    """Somebody else held the lock for longer than we were willing to wait."""


class NoSuchRowError(LockAcquisitionError):
    """There is no such row, so there is nothing to lock: two who ask for it would both pass."""


class LockedWriteError(DbWriteError, LockAcquisitionError):
    """``DbWriter`` did not get the lock of its strategy. Nothing was written.

    Both a ``DbWriteError`` (any failure of a write is one) and a ``LockAcquisitionError``.
    """

    def __init__(
        self,
        message: str,
        *,
        table: str | None = None,
        operation: str | None = None,
        errno: int | None = None,
        resource: str | None = None,
        waited_s: float | None = None,
        holder: str | None = None,
    ) -> None:
        super().__init__(message, table=table, operation=operation, errno=errno)
        self.resource = resource
        self.waited_s = waited_s
        self.holder = holder


class HandlerTimeoutError(ConquietError, TimeoutError):
    """A handler of the processor took longer than its timeout.

    An ``async`` handler was cancelled. A plain function was not: a thread cannot be killed, so the
    message stays with it until it ends, and only then is it tried again or buried.
    """

    def __init__(self, message: str, *, event: str | None = None, timeout_s: float | None = None) -> None:
        super().__init__(message)
        self.event = event
        self.timeout_s = timeout_s


class QueueError(ConquietError):
    """A Redis command failed or its reply was lost. It was sent at most once.

    After a lost reply the command may have taken effect: an enqueued entry may be there, a
    read entry may be pending for this consumer (``recover_own()`` finds it). ``in_doubt`` says so:
    False means that the server refused the command or never got it.
    """

    def __init__(
        self,
        message: str,
        *,
        stream: str | None = None,
        group: str | None = None,
        command: str | None = None,
        in_doubt: bool = False,
    ) -> None:
        super().__init__(message)
        self.stream = stream
        self.group = group
        self.command = command
        self.in_doubt = in_doubt


class PayloadError(QueueError, ValueError):
    """A payload cannot be written as a message. Nothing was sent."""

    def __init__(
        self,
        message: str,
        *,
        stream: str | None = None,
        group: str | None = None,
        command: str | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(message, stream=stream, group=group, command=command)
        self.reason = reason


class MalformedMessageError(QueueError):
    """A stream entry breaks the format. It stays pending under its id until somebody acts on it.

    ``message_ids`` names every malformed entry of the reply, ``message_id`` the first of them.
    """

    def __init__(
        self,
        message: str,
        *,
        stream: str | None = None,
        group: str | None = None,
        command: str | None = None,
        message_id: str | None = None,
        message_ids: tuple[str, ...] = (),
        reason: str | None = None,
    ) -> None:
        super().__init__(message, stream=stream, group=group, command=command)
        self.message_id = message_id
        self.message_ids = message_ids or (() if message_id is None else (message_id,))
        self.reason = reason


class GroupMissingError(QueueError):
    """The stream or its consumer group is gone (FLUSHALL, DEL, XGROUP DESTROY, eviction).

    Nothing recreates it by itself: what was pending in it is lost, and somebody should know.
    """


class LeaseLostError(QueueError):
    """A message is not certainly ours any more: another consumer claimed it, or may have by now.

    Whatever its handler has not committed should be rolled back. The engine does not acknowledge the
    message: that is up to its new holder.
    """

    def __init__(
        self,
        message: str,
        *,
        stream: str | None = None,
        group: str | None = None,
        command: str | None = None,
        message_id: str | None = None,
    ) -> None:
        super().__init__(message, stream=stream, group=group, command=command)
        self.message_id = message_id


class DeliveriesExhaustedError(QueueError):
    """A message was delivered more often than allowed. It was not run again and stays pending."""

    def __init__(
        self,
        message: str,
        *,
        stream: str | None = None,
        group: str | None = None,
        command: str | None = None,
        message_id: str | None = None,
        delivery_count: int | None = None,
    ) -> None:
        super().__init__(message, stream=stream, group=group, command=command)
        self.message_id = message_id
        self.delivery_count = delivery_count


class RabbitError(ConquietError):
    """RabbitMQ refused, went away or did not answer. What was unsettled goes back to its queue."""

    def __init__(self, message: str, *, queue: str | None = None, reason: str | None = None) -> None:
        super().__init__(message)
        self.queue = queue
        self.reason = reason


class RabbitConnectionError(RabbitError):
    """A connection could not be made, or was lost more often in a row than the settings allow."""

    def __init__(
        self, message: str, *, queue: str | None = None, reason: str | None = None, attempts: int | None = None
    ) -> None:
        super().__init__(message, queue=queue, reason=reason)
        self.attempts = attempts


class QueueMissingError(RabbitError):
    """The queue does not exist. conquiet declares queues passively: it never creates one by mistake."""


class FatalSyncerError(RabbitError):
    """The syncer raised or returned something that is not a boolean, or a private key is missing.

    Intake stopped, the message was settled by nobody (it is back in its queue; with ``poison_guard`` it may have been
    dead-lettered, and the text says so), channel and connection are closed.
    What the syncer raised is the ``__cause__``; its text is not repeated here because it may quote the message.
    """


class UncaughtError(RabbitError):
    """An error that nobody caught reached the event loop or ended a thread. The consumer was closed in good order."""


class PublishError(RabbitError):
    """The broker did not confirm a message: it refused it, or the connection went away first.

    After a lost connection the message may be in the queue all the same. Publishing it again may make two of it.
    """

    def __init__(
        self, message: str, *, queue: str | None = None, reason: str | None = None, message_id: str | None = None
    ) -> None:
        super().__init__(message, queue=queue, reason=reason)
        self.message_id = message_id


class ReturnedMessageError(PublishError):
    """The broker gave the message back because no queue is bound for it. It is in no queue."""
