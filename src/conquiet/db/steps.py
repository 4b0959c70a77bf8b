"""Two small scopes that every write is made of."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType

from conquiet.db.connections import Checkout, WriterConnections
from conquiet.db.faults import About, as_write_error
from conquiet.errors import ConquietError


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


@contextmanager
def borrowed(connections: WriterConnections, about: About, *, autocommit: bool) -> Iterator[Checkout]:
    """Borrow a connection; not getting one is a ``DbWriteError`` too."""
    with ExitStack() as stack:
        with translated(about):
            checkout = stack.enter_context(connections.checkout(autocommit=autocommit))
        yield checkout
