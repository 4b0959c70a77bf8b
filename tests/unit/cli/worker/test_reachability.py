"""The start waits for a server that cannot be reached, not for a server that refuses."""

import socket

import pytest
from redis.exceptions import AuthenticationError, BusyLoadingError, NoPermissionError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.sentinel import MasterNotFoundError

from conquiet.cli.worker.reachability import unreachable_server
from conquiet.errors import QueueError, RabbitConnectionError


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "server"),
    [
        (RedisConnectionError("Error 111 connecting to 10.0.0.7:6379. Connection refused."), "Redis at 10.0.0.7:6379"),
        (RedisConnectionError("Error -2 connecting to redis:6379. Name or service not known."), "Redis at redis:6379"),
        (BusyLoadingError("Redis is loading the dataset in memory"), "Redis"),
        (caused(QueueError("XREADGROUP"), MasterNotFoundError("No master found for 'shop'")), "Redis"),
        (
            caused(
                RabbitConnectionError("cannot connect to RabbitMQ at amqp://broker:5672: ConnectionRefusedError"),
                ConnectionRefusedError(111, "refused"),
            ),
            "RabbitMQ at amqp://broker:5672",
        ),
        (caused(RuntimeError("mine"), ConnectionRefusedError(111, "refused")), "a server"),
        (socket.gaierror(-2, "unknown"), "a server"),
        (AuthenticationError("WRONGPASS"), None),
        (NoPermissionError("NOPERM"), None),
        (ResponseError("ERR unknown command"), None),
        (QueueError("something else"), None),
        (ValueError("port"), None),
    ],
)
def test_an_unreachable_server_is_distinguished_from_one_that_refuses(error: BaseException, server: str | None) -> None:
    assert unreachable_server(error) == server


def test_the_cause_of_an_error_is_looked_at_too() -> None:
    cause = RedisConnectionError("Error 111 connecting to 127.0.0.1:1. Connection refused.")

    assert unreachable_server(caused(QueueError("XGROUP CREATE was not sent"), cause)) == "Redis at 127.0.0.1:1"


def test_the_context_of_an_error_is_examined_too() -> None:
    """The start waits for the server even if the application wraps errors without ``from``."""
    error = RuntimeError("mine")
    error.__context__ = RedisConnectionError("Error 111 connecting to 127.0.0.1:1. Connection refused.")

    assert unreachable_server(error) == "Redis at 127.0.0.1:1"
