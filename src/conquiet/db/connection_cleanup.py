"""Clean up a connection without logging the exception that is being handled.

Python attaches the exception that is being handled to each new one as its ``__context__``. SQLAlchemy's pool logs its
own failures with a traceback ("Exception during reset or similar", "Exception closing connection"), and a traceback
prints the whole chain. The text of a handler's exception may quote a message, and would get into the log of the process
that loses a connection at that moment. ``clean_up`` breaks the chain.
"""

import sys
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.engine import Connection

T = TypeVar("T")


class ConnectionCleanup(Exception):  # noqa: N818 - not an error: it replaces one in a chain of contexts
    """Replaces the exception that is being handled while a connection is cleaned up. Carries nothing of it."""


def clean_up(work: Callable[[], T]) -> T:
    """Call ``work()`` so that the exception being handled now is in no chain of an exception raised in it.

    What ``work`` raises is raised here, with the context that Python gives it here.
    """
    if sys.exception() is None:
        return work()
    try:
        raise ConnectionCleanup("the connection is being cleaned up after an exception, which is reported elsewhere")
    except ConnectionCleanup as stand_in:
        stand_in.__context__ = None
        try:
            return work()
        except BaseException as error:  # noqa: BLE001 - raised again below, outside this context
            failure = error
    try:
        raise failure
    finally:
        del failure  # its traceback refers to this frame


def invalidate(conn: Connection) -> None:
    """Close the connection; the server rolls back its transaction and frees its locks."""
    clean_up(conn.invalidate)
