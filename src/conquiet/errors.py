"""Every error that conquiet raises, and the state it leaves behind.

    ConquietError
    ├── ConfigurationError (ValueError)      a setting is wrong; nothing was sent anywhere
    ├── MissingExtraError (ImportError)      an optional dependency is not installed
    ├── LifecycleError (RuntimeError)        called in the wrong order; nothing was done
    ├── OperatorError                        an operator's request was refused; nothing was changed
    │   ├── NoSuchStreamError                ... because there is no such stream, group or consumer
    │   └── WrongKeyTypeError                ... because the key holds something else than a stream
    ├── MessageKeyError (ValueError)         the inbox cannot identify this message; nothing was run
    ├── DbWriteError                         a write failed and left nothing behind
    │   ├── CommitUnknownError               also an InfrastructureError: the reply to COMMIT was lost
    │   ├── DatabaseUnavailableError         also an InfrastructureError: unreachable, read-only or no free connection
    │   ├── ConflictError                    another transaction was first; rolled back, worth a new attempt
    │   │   └── MessageInProgressError       ... because another run of the message is not over
    │   └── LockedWriteError                 also a LockAcquisitionError: the writer did not get its lock
    ├── LockAcquisitionError                 a lock could not be acquired; nothing was written
    │   ├── LockTimeoutError                 ... because another session held it for too long
    │   └── NoSuchRowError                   ... because there is no row to lock
    ├── InfrastructureError                  a server the handler needs is unavailable; the message is not at fault
    │   └── ServerUnreachableError           a server could not be reached at the start; nothing was read
    ├── JobCancelledError                    an operator has cancelled the job; it has no effect
    ├── JobFailedError                       the job whose result was waited for is dead
    ├── JobResultError                       the job has succeeded, and its result does not fit the type asked for
    ├── JobTimeoutError (TimeoutError)       the job whose result was waited for has not ended in time; it goes on
    ├── HandlerTimeoutError (TimeoutError)   a handler exceeded its timeout; cancelled, or still running in its thread
    ├── QueueError                           Redis refused or did not answer
    │   ├── PayloadError (ValueError)        a payload that cannot become a message; nothing was sent
    │   ├── MalformedMessageError            an entry that is not one of ours; it stays pending
    │   ├── GroupMissingError                the consumer group (or its stream) is gone
    │   ├── NotReplicatedError               written, but too few replicas have confirmed it in time
    │   ├── LeaseLostError                   another consumer owns the message, or may own it
    │   └── DeliveriesExhaustedError         delivered too often; not run again, still pending
    └── RabbitError                          RabbitMQ refused, went away or did not answer
        ├── RabbitConnectionError            no connection, or it was lost more often than allowed
        ├── QueueMissingError                the queue is not there; it is never created for you
        ├── FatalSyncerError                 the syncer broke its contract; its message is unsettled
        ├── UncaughtError                    an uncaught error ended the process in good order
        └── PublishError                     not confirmed: the message may or may not be in the queue
            └── ReturnedMessageError         ... because no queue is bound for it: it is in no queue

Messages are built from facts that are safe to log: names from the configuration, error
numbers, message ids. A payload, a bound parameter or a credential is never in ``str()`` or
``repr()`` of one of these. The driver's own error is kept as ``__cause__`` only.

A class declares its facts as annotated attributes with defaults; the constructor takes them as keywords. So every
error can be pickled: it is rebuilt from its message, and then gets its facts.

See docs/decisions/0027.
"""

from typing import Any


class ConquietError(Exception):
    """Base of all errors of this library.

    Args:
        message: The text.
        **facts: Values of the attributes that the class declares.
    """

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        for name, value in facts.items():
            if not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} has no fact {name!r}")
            setattr(self, name, value)


class ConfigurationError(ConquietError, ValueError):
    """A setting is wrong. Raised before any I/O, so nothing has happened yet.

    Attributes:
        fix: What to do, where the text does not say it.
    """

    fix: str = ""


class MissingExtraError(ConquietError, ImportError):
    """A part of conquiet was used whose optional dependency is not installed."""

    extra: str | None = None


class LifecycleError(ConquietError, RuntimeError):
    """An object was used before its start, after its end, or twice. The call did nothing."""


class OperatorError(ConquietError):
    """An operator's request is not possible or not safe now. Nothing was changed."""

    stream: str | None = None


class NoSuchStreamError(OperatorError):
    """There is no such stream, or it has no such group or consumer."""


class WrongKeyTypeError(OperatorError):
    """The key holds something else than a stream. It was not changed."""


class MessageKeyError(ConquietError, ValueError):
    """A message has no key that identifies it in an inbox. Its handler was not run, and it was not settled."""


class InfrastructureError(ConquietError):
    """A server that a handler depends on is unavailable. The message is not at fault.

    A handler may raise it, or a subclass. The worker releases the message without charging a delivery or an attempt,
    pauses consumption with backoff, and resumes when a message succeeds again.
    """


class ServerUnreachableError(InfrastructureError):
    """A server that an application needs could not be reached at its start. Nothing was read or written.

    Attributes:
        server: Which server, without credentials.
    """

    server: str = ""


class DbWriteError(ConquietError):
    """A database write failed. Its transaction was rolled back: nothing of it is visible.

    The exception to that rule is its own class, ``CommitUnknownError``.

    Attributes:
        table: The table that was written.
        operation: ``insert`` or ``update``.
        errno: The server's error number, on MySQL, MariaDB and SQLite.
        sqlstate: The server's error code, on PostgreSQL.
        completed: Out of ``execute_many`` only: how many operations before this one are committed.
    """

    table: str | None = None
    operation: str | None = None
    errno: int | None = None
    sqlstate: str | None = None
    completed: int | None = None


class DatabaseUnavailableError(DbWriteError, InfrastructureError):
    """The database cannot be used now: unreachable, read-only, or no connection of the pool was free in time.

    Nothing was written. The same work may succeed later without a change.
    """


class CommitUnknownError(DbWriteError, InfrastructureError):
    """COMMIT was sent and its reply was lost: the write may or may not be there.

    The same holds for a statement that commits itself, and for any interruption in place of the reply: a lost
    connection, or an exception of the caller's own.

    Do not acknowledge a message after it, and do not treat the write as failed. The next delivery of the message finds
    out, by the row itself or by an inbox row of the same transaction.
    """


class ConflictError(DbWriteError):
    """Another transaction was first: a stale version, a deadlock or a lock wait that ran out.

    The transaction was rolled back as a whole. A *new* transaction may succeed.
    """


class MessageInProgressError(ConflictError):
    """Another run of the same message holds its inbox row. Its handler was not called, and nothing was written.

    The message is not at fault: whether it is done is known when the other run ends.
    """


class LockAcquisitionError(ConquietError):
    """A lock could not be acquired, so nothing was written.

    Attributes:
        resource: What was to be locked.
        waited_s: How long the caller waited.
        holder: The session that holds the lock, if the server names it.
    """

    resource: str | None = None
    waited_s: float | None = None
    holder: str | None = None


class LockTimeoutError(LockAcquisitionError):
    """Another session held the lock for longer than the timeout."""


class NoSuchRowError(LockAcquisitionError):
    """There is no such row to lock: two transactions that ask for it would both go on."""


class LockedWriteError(DbWriteError, LockAcquisitionError):
    """``DbWriter`` did not get the lock of its strategy. Nothing was written.

    Both a ``DbWriteError`` (any failure of a write is one) and a ``LockAcquisitionError``.
    """


class JobCancelledError(ConquietError):
    """An operator has cancelled the job. Raised by ``ctx.raise_if_cancelled()``, and by waiting for its result.

    Whatever its handler did in its transaction was rolled back.
    """

    event: str | None = None
    job_id: str | None = None


class JobFailedError(ConquietError):
    """The job whose result was waited for is dead: it is among the dead letters."""

    job_id: str | None = None
    reason: str | None = None


class JobResultError(ConquietError):
    """The job has succeeded, and what its handler returned does not fit the type that was asked for.

    Its effect counts. The result has no value if it could not be written as JSON, or if the worker was killed between
    its commit and the result.

    Attributes:
        reason: Why, from a closed list of texts.
        path: Keys and indexes that lead to the value that does not fit. The value is in no part of the error.
    """

    event: str | None = None
    reason: str | None = None
    path: str = ""


class JobTimeoutError(ConquietError, TimeoutError):
    """The job whose result was waited for has not ended in time, or its result is not kept. The job goes on."""

    job_id: str | None = None
    timeout_s: float | None = None


class HandlerTimeoutError(ConquietError, TimeoutError):
    """A handler of the processor took longer than its timeout.

    An ``async`` handler was cancelled. A plain function was not: a thread cannot be killed, so the message stays with
    it until it ends, and only then is it retried or dead-lettered.
    """

    event: str | None = None
    timeout_s: float | None = None


class QueueError(ConquietError):
    """A Redis command failed or its reply was lost. It was sent at most once.

    After a lost reply the command may have taken effect: an enqueued entry may be there, a read entry may be pending
    for this consumer (``recover_own()`` finds it).

    Attributes:
        stream: The stream it concerned.
        group: The consumer group it concerned.
        command: Name of the command.
        in_doubt: True if the reply was lost. False if the server refused the command or never got it.
    """

    stream: str | None = None
    group: str | None = None
    command: str | None = None
    in_doubt: bool = False


class PayloadError(QueueError, ValueError):
    """A payload cannot be written as a message. Nothing was sent.

    Attributes:
        reason: Why, from a closed list of texts.
        path: Keys and indexes that lead to the refused value (``order.items[3]``). The value is in no part of the
            error.
    """

    reason: str | None = None
    path: str = ""


class NotReplicatedError(QueueError):
    """A message was written, and too few replicas have confirmed it in time. ``in_doubt`` is true.

    It is there unless the master is lost before its replicas have it. Sent again with the same id (or idempotency key),
    it is there once.

    Attributes:
        confirmed: Replicas that have it.
        wanted: Replicas that were asked for.
    """

    confirmed: int = 0
    wanted: int = 0


class MalformedMessageError(QueueError):
    """A stream entry breaks the format. It stays pending under its id until it is acknowledged.

    Attributes:
        message_id: The first malformed entry of the reply.
        message_ids: Every malformed entry of the reply.
        reason: Why, from a closed list of texts.
    """

    message_id: str | None = None
    message_ids: tuple[str, ...] = ()
    reason: str | None = None

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message, **facts)
        if not self.message_ids and self.message_id is not None:
            self.message_ids = (self.message_id,)


class GroupMissingError(QueueError):
    """The stream or its consumer group is gone (FLUSHALL, DEL, XGROUP DESTROY, eviction).

    It is not created again automatically: what was pending in it is lost, and an operator should know.
    """


class LeaseLostError(QueueError):
    """Another consumer has claimed the message, or may have by now.

    Whatever its handler has not committed should be rolled back. The worker does not acknowledge the message: its new
    owner does.
    """

    message_id: str | None = None


class DeliveriesExhaustedError(QueueError):
    """A message was delivered more often than allowed. It was not run again and stays pending."""

    message_id: str | None = None
    delivery_count: int | None = None


class RabbitError(ConquietError):
    """RabbitMQ refused, went away or did not answer. Unsettled messages return to their queue."""

    queue: str | None = None
    reason: str | None = None


class RabbitConnectionError(RabbitError):
    """A connection could not be opened, or was lost more often in a row than the settings allow."""

    attempts: int | None = None


class QueueMissingError(RabbitError):
    """The queue does not exist. conquiet declares queues passively: it never creates one by mistake."""


class FatalSyncerError(RabbitError):
    """The syncer raised or returned something that is not a boolean, or a private key is missing.

    The consumer stopped; the message was not settled (it is back in its queue; with ``poison_guard`` it may have been
    dead-lettered, and the text says so); channel and connection are closed. What the syncer raised is the
    ``__cause__``; its text is not repeated here because it may quote the message.
    """


class UncaughtError(RabbitError):
    """An uncaught error reached the event loop or ended a thread. The consumer was closed in good order."""


class PublishError(RabbitError):
    """The broker did not confirm a message: it refused it, or the connection was lost first.

    After a lost connection the message may be in the queue. Publishing it again may create a second one.
    """

    message_id: str | None = None


class ReturnedMessageError(PublishError):
    """The broker returned the message because no queue is bound for it. It is in no queue."""
