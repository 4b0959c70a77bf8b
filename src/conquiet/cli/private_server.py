"""Start a server for one command. A server that is missing or does not start is reported in one sentence."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from conquiet.cli.errors import CommandError
from conquiet.testing.errors import ServerStartError, ServerUnavailableError
from conquiet.testing.process import PrivateServer

S = TypeVar("S", bound=PrivateServer)


@contextmanager
def private_server(make: Callable[[], S], problem: str, *, fix: str) -> Iterator[S]:
    """Yield the server that ``make`` returns, running; it ends with the block."""
    try:
        server = make().start()
    except (ServerStartError, ServerUnavailableError) as error:
        # The other lines are the log of the server.
        raise CommandError(f"{problem}: {str(error).splitlines()[0]}", fix=fix) from error
    try:
        yield server
    finally:
        server.stop()
