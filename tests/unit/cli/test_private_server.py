"""Servers that a command starts for itself."""

from typing import Self

import pytest

from conquiet.cli.errors import NOT_DONE, CommandError
from conquiet.cli.private_server import private_server
from conquiet.testing import RedisServer, ServerStartError


class BrokenServer(RedisServer):
    """A server with a program that ends immediately."""

    def __init__(self) -> None:
        """Search for no program."""

    def start(self) -> Self:
        raise ServerStartError("redis exited with code 1 before it answered.\n$ redis-server\nits log")


def test_a_server_that_does_not_start_is_reported_in_one_sentence() -> None:
    """Else the command would call it an internal error, and exit with 1 instead of 2."""
    problem = r"^no Redis for the demo: redis exited with code 1 before it answered\.$"
    with (
        pytest.raises(CommandError, match=problem) as refused,
        private_server(BrokenServer, "no Redis for the demo", fix="install one"),
    ):
        pass

    assert (refused.value.exit_code, refused.value.fix) == (NOT_DONE, "install one")
