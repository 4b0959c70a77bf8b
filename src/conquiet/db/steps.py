"""Two small scopes that every write is made of."""

from types import TracebackType

from conquiet.db.connections import Checkout, WriterConnections
from conquiet.db.faults import About, as_write_error
from conquiet.errors import ConquietError, DbWriteError, LifecycleError


class translated:  # noqa: N801 - reads as a verb: with translated(about): ...
    """Turns whatever the driver raises inside into a ``DbWriteError`` about this operation.

    Args:
        about: What is being done.
        committing: An error in here may come after the server has committed.
    """

    __slots__ = ("_about", "_committing")

    def __init__(self, about: About, *, committing: bool = False) -> None:
        self._about = about
        self._committing = committing

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, ConquietError):
            raise as_write_error(error, self._about, committing=self._committing) from error


class borrowed:  # noqa: N801 - reads as a verb: with borrowed(connections, about) as checkout: ...
    """A connection for the time of one write. Not getting one is a ``DbWriteError`` too.

    An exception rolls back what was not committed, or closes the connection if that is not possible.

    Args:
        connections: Where it comes from.
        about: What is being done.
        autocommit: Each statement is a transaction by itself; else COMMIT ends the only one. None takes the
            connection as it is, which saves the trip of switching it.
    """

    __slots__ = ("_about", "_autocommit", "_checkout", "_connections")

    # A class and not a generator: this is passed for every write, and two generators with an
    # ExitStack cost a tenth of one.
    def __init__(self, connections: WriterConnections, about: About, *, autocommit: bool | None) -> None:
        self._connections = connections
        self._about = about
        self._autocommit = autocommit

    def __enter__(self) -> Checkout:
        try:
            self._checkout = self._connections.checkout(autocommit=self._autocommit)
        except LifecycleError as error:
            about = self._about
            raise DbWriteError(f"{about} failed: {error}", table=about.table, operation=about.operation) from error
        except Exception as error:
            raise as_write_error(error, self._about) from error
        return self._checkout

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._checkout.abandon(error)
        self._checkout.give_back()
