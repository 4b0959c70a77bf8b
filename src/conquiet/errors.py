"""All errors that conquiet raises, and the state after each.

    ConquietError
    ├── ConfigurationError (ValueError)      a setting is invalid; nothing was sent
    ├── MissingExtraError (ImportError)      an optional dependency is not installed
    ├── LifecycleError (RuntimeError)        called in the wrong order; nothing was done
    ├── OperatorError                        an operator's request was rejected; nothing was changed
    │   ├── NoSuchStreamError                ... because there is no such stream, group or consumer
    │   └── WrongKeyTypeError                ... because the key is not a stream
    ├── MessageKeyError (ValueError)         the inbox cannot identify this message; nothing was run
    ├── DbWriteError                         a write failed and left nothing behind
    │   ├── CommitUnknownError               also an InfrastructureError: the reply to COMMIT was lost
    │   ├── DatabaseUnavailableError         also an InfrastructureError: unreachable, read-only or no free connection
    │   ├── ConflictError                    another transaction was first; rolled back, may be retried
    │   │   └── MessageInProgressError       ... because another run of the message has not ended
    │   └── LockedWriteError                 also a LockAcquisitionError: the writer could not acquire its lock
    ├── LockAcquisitionError                 a lock could not be acquired; nothing was written
    │   ├── LockTimeoutError                 ... because another session held it for too long
    │   └── NoSuchRowError                   ... because there is no row to lock
    ├── InfrastructureError                  a server the handler needs is unavailable; no attempt is counted
    │   └── ServerUnreachableError           a server could not be reached at the start; nothing was read
    ├── JobCancelledError                    an operator has cancelled the job; it has no effect
    ├── JobFailedError                       the awaited job is dead
    ├── JobResultError                       the job succeeded, but its result does not match the requested type
    ├── JobTimeoutError (TimeoutError)       the awaited job has not ended in time; it continues
    ├── HandlerTimeoutError (TimeoutError)   a handler exceeded its timeout; cancelled, or still running in its thread
    ├── QueueError                           Redis returned an error or did not reply
    │   ├── PayloadError (ValueError)        a payload cannot be encoded as a message; nothing was sent
    │   ├── MalformedMessageError            an entry has another format; it stays pending
    │   ├── GroupMissingError                the consumer group (or its stream) is gone
    │   ├── NotReplicatedError               written, but too few replicas have confirmed it in time
    │   ├── LeaseLostError                   another consumer owns the message, or may own it
    │   └── DeliveriesExhaustedError         delivered too often; not run again, still pending
    └── RabbitError                          RabbitMQ returned an error, closed the connection or did not reply
        ├── RabbitConnectionError            no connection, or it was lost more often than allowed
        ├── QueueMissingError                the queue does not exist; conquiet never creates it
        ├── FatalSyncerError                 the syncer broke its contract; its message is unsettled
        ├── UncaughtError                    an uncaught error stopped the process in order
        └── PublishError                     not confirmed: the message may or may not be in the queue
            └── ReturnedMessageError         ... because no queue is bound for it: it is in no queue

Error texts contain only facts that are safe to log: names from the configuration, error
numbers, message ids. ``str()`` and ``repr()`` never contain a payload, a bound parameter or a
credential. The driver's error is kept as ``__cause__`` only.

A class declares its facts as annotated attributes with defaults, and the constructor takes them as keywords. So every
error can be pickled: it is rebuilt from its text, then its facts are restored.
"""

from typing import Any


class ConquietError(Exception):
    """Base class of all errors of this library.

    Args:
        message: The text.
        **facts: Values for the attributes that the class declares.
    """

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        for name, value in facts.items():
            if not hasattr(type(self), name):
                raise TypeError(f"{type(self).__name__} has no fact {name!r}")
            setattr(self, name, value)


class ConfigurationError(ConquietError, ValueError):
    """A setting is invalid. Raised before any I/O.

    Attributes:
        fix: The remedy, if the text does not contain it.
    """

    fix: str = ""


class MissingExtraError(ConquietError, ImportError):
    """A part of conquiet was used without its optional dependency."""

    extra: str | None = None


class LifecycleError(ConquietError, RuntimeError):
    """An object was used before its start, after its end, or twice. The call did nothing."""


class OperatorError(ConquietError):
    """An operator's request is currently not possible or not safe. Nothing was changed."""

    stream: str | None = None


class NoSuchStreamError(OperatorError):
    """There is no such stream, or it has no such group or consumer."""


class WrongKeyTypeError(OperatorError):
    """The key is not a stream. It was not changed."""


class MessageKeyError(ConquietError, ValueError):
    """A message has no key that identifies it in an inbox. Its handler was not run, and it was not settled."""


class InfrastructureError(ConquietError):
    """A server that a handler needs is unavailable. The failure does not count against the message.

    A handler may raise it, or a subclass. The worker releases the message without charging a delivery or an attempt,
    pauses consumption with backoff, and resumes when a message succeeds again.
    """


class ServerUnreachableError(InfrastructureError):
    """A server that an application needs could not be reached at its start. Nothing was read or written.

    Attributes:
        server: Name or URL of the server, without credentials.
    """

    server: str = ""


class DbWriteError(ConquietError):
    """A database write failed. Its transaction was rolled back, so nothing of it is visible.

    The only exception is the subclass ``CommitUnknownError``.

    Attributes:
        table: The table that was written.
        operation: ``insert`` or ``update``.
        errno: The server's error number, on MySQL, MariaDB and SQLite.
        sqlstate: The server's error code, on PostgreSQL.
        completed: For ``execute_many`` only: number of earlier operations that are committed.
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
    """COMMIT was sent and its reply was lost: the write may or may not be committed.

    The same applies to a statement that commits implicitly, and to any interruption before the reply: a lost
    connection, or an exception raised in the caller.

    Do not acknowledge the message, and do not treat the write as failed. The next delivery of the message detects the
    outcome by the row itself or by an inbox row of the same transaction.
    """


class ConflictError(DbWriteError):
    """Another transaction was first: a stale version, a deadlock or a lock wait timeout.

    The transaction was rolled back as a whole. A *new* transaction may succeed.
    """


class MessageInProgressError(ConflictError):
    """Another run of the same message holds its inbox row. Its handler was not called, and nothing was written.

    It does not count as a failure of the message: the outcome is known when the other run ends.
    """


class LockAcquisitionError(ConquietError):
    """A lock could not be acquired, so nothing was written.

    Attributes:
        resource: The resource to lock.
        waited_s: How long the caller waited.
        holder: The session that holds the lock, if the server reports it.
    """

    resource: str | None = None
    waited_s: float | None = None
    holder: str | None = None


class LockTimeoutError(LockAcquisitionError):
    """Another session held the lock for longer than the timeout."""


class NoSuchRowError(LockAcquisitionError):
    """There is no row to lock: two transactions that lock it would both continue."""


class LockedWriteError(DbWriteError, LockAcquisitionError):
    """``DbWriter`` could not acquire the lock of its strategy. Nothing was written.

    It is a ``DbWriteError``, like any failure of a write, and a ``LockAcquisitionError``.
    """


class JobCancelledError(ConquietError):
    """An operator has cancelled the job. Raised by ``ctx.raise_if_cancelled()`` and when its result is awaited.

    The transaction of its handler was rolled back.
    """

    event: str | None = None
    job_id: str | None = None


class JobFailedError(ConquietError):
    """The awaited job is dead: its message is in the dead letters."""

    job_id: str | None = None
    reason: str | None = None


class JobResultError(ConquietError):
    """The job succeeded, but the handler's result does not match the requested type.

    The job's effect is committed. The result has no value if it could not be encoded as JSON, or if the worker was
    killed between its commit and the result.

    Attributes:
        reason: The reason, from a closed list of texts.
        path: Keys and indexes that lead to the mismatching value. The error never contains the value.
    """

    event: str | None = None
    reason: str | None = None
    path: str = ""


class JobTimeoutError(ConquietError, TimeoutError):
    """The awaited job has not ended in time, or its result is not kept. The job continues."""

    job_id: str | None = None
    timeout_s: float | None = None


class HandlerTimeoutError(ConquietError, TimeoutError):
    """A handler of the processor took longer than its timeout.

    An ``async`` handler was cancelled. A plain function was not, because a thread cannot be killed: the message stays
    leased until the thread ends, and only then is it retried or dead-lettered.
    """

    event: str | None = None
    timeout_s: float | None = None


class QueueError(ConquietError):
    """A Redis command failed or its reply was lost. It was sent at most once.

    After a lost reply the command may have taken effect: an entry may be enqueued, or read entries may be pending for
    this consumer (``recover_own()`` finds them).

    Attributes:
        stream: The stream of the command.
        group: The consumer group of the command.
        command: Name of the command.
        in_doubt: True if the reply was lost. False if the server rejected the command or never received it.
    """

    stream: str | None = None
    group: str | None = None
    command: str | None = None
    in_doubt: bool = False


class PayloadError(QueueError, ValueError):
    """A payload cannot be encoded as a message. Nothing was sent.

    Attributes:
        reason: The reason, from a closed list of texts.
        path: Keys and indexes that lead to the rejected value (``order.items[3]``). The error never contains the
            value.
    """

    reason: str | None = None
    path: str = ""


class NotReplicatedError(QueueError):
    """A message was written, but too few replicas have confirmed it in time. ``in_doubt`` is true.

    The message is lost only if the master is lost before a replica has it. Emitting it again with the same id (or
    idempotency key) writes it once.

    Attributes:
        confirmed: Replicas that confirmed it.
        requested: Requested number of replicas.
    """

    confirmed: int = 0
    requested: int = 0


class MalformedMessageError(QueueError):
    """A stream entry has an invalid format. It stays pending until it is acknowledged.

    Attributes:
        message_id: The first malformed entry of the reply.
        message_ids: All malformed entries of the reply.
        reason: The reason, from a closed list of texts.
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

    It is not recreated automatically: its pending entries are lost, and an operator should know.
    """


class LeaseLostError(QueueError):
    """Another consumer has claimed the message, or may have claimed it.

    The handler should roll back uncommitted work. The worker does not acknowledge the message: its new owner does.
    """

    message_id: str | None = None


class DeliveriesExhaustedError(QueueError):
    """A message was delivered more often than allowed. It was not run again and stays pending."""

    message_id: str | None = None
    delivery_count: int | None = None


class RabbitError(ConquietError):
    """RabbitMQ returned an error, closed the connection or did not reply. Unsettled messages return to their queue."""

    queue: str | None = None
    reason: str | None = None


class RabbitConnectionError(RabbitError):
    """A connection could not be opened, or was lost more often consecutively than the settings allow."""

    attempts: int | None = None


class QueueMissingError(RabbitError):
    """The queue does not exist. conquiet declares queues passively: it never creates one by mistake."""


class FatalSyncerError(RabbitError):
    """The syncer raised or returned something that is not a boolean, or a private key is missing.

    The consumer stopped, and channel and connection are closed. The message was not settled: it is back in its queue.
    With ``poison_guard`` it may have been dead-lettered, which the text then states. The syncer's error is the
    ``__cause__``; its text is not repeated here because it may quote the message.
    """


class UncaughtError(RabbitError):
    """An uncaught error reached the event loop or ended a thread. The consumer was stopped in order."""


class PublishError(RabbitError):
    """The broker did not confirm a message: it rejected it, or the connection was lost first.

    After a lost connection the message may be in the queue. Publishing it again may create a duplicate.
    """

    message_id: str | None = None


class ReturnedMessageError(PublishError):
    """The broker returned the message because no queue is bound for it. It is in no queue."""
