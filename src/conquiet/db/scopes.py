"""The context managers of a write: check out a connection, translate errors."""

from conquiet.db.errors import OperationInfo, as_write_error
from conquiet.db.writer_pool import Checkout, WriterPool
from conquiet.errors import ConquietError, DbWriteError, LifecycleError


class translate_errors:  # noqa: N801 - reads as a verb: with translate_errors(info): ...
    """Raise a ``DbWriteError`` about this operation for any error of the driver.

    Args:
        info: The operation.
        committing: An error in here may come after the server has committed.
    """

    __slots__ = ("_committing", "_info")

    def __init__(self, info: OperationInfo, *, committing: bool = False) -> None:
        self._info = info
        self._committing = committing

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, ConquietError):
            raise as_write_error(error, self._info, committing=self._committing) from error


class checked_out:  # noqa: N801 - reads as a verb: with checked_out(pool, info) as checkout: ...
    """Check out a connection for one write; ``DbWriteError`` if there is none.

    An exception rolls back what was not committed, or closes the connection if that is not possible.

    Args:
        pool: Where the connection comes from.
        info: The operation.
        autocommit: True makes each statement its own transaction; with False COMMIT ends it. None takes the
            connection in its current mode, which saves the round trip of switching it.
    """

    __slots__ = ("_autocommit", "_checkout", "_info", "_pool")

    # A class and not a generator: every write enters it, and two generators with an
    # ExitStack cost a tenth of a write.
    def __init__(self, pool: WriterPool, info: OperationInfo, *, autocommit: bool | None) -> None:
        self._pool = pool
        self._info = info
        self._autocommit = autocommit

    def __enter__(self) -> Checkout:
        try:
            self._checkout = self._pool.checkout(autocommit=self._autocommit)
        except LifecycleError as error:
            info = self._info
            raise DbWriteError(f"{info} failed: {error}", table=info.table, operation=info.operation) from error
        except Exception as error:
            raise as_write_error(error, self._info, connecting=self._pool.engine) from error
        return self._checkout

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self._checkout.abort(error)
        self._checkout.release()
