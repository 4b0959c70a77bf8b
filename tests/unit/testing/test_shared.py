"""The servers of a test run, given by URL or private."""

import sys
import traceback
from collections.abc import Callable

import pytest

from conquiet.testing import RabbitMQServer, RedisServer, ServerStateError, ServerUnavailableError
from conquiet.testing.shared import SharedServers


@pytest.mark.parametrize(
    ("variable", "url", "start"),
    [
        ("CONQUIET_TEST_REDIS_URL", "redis://:secret@127.0.0.1:1/0", SharedServers.redis),
        ("CONQUIET_TEST_DB_URL", "mysql+pymysql://root:secret@127.0.0.1:1", lambda servers: servers.mysql(None)),
        ("CONQUIET_TEST_POSTGRES_URL", "postgresql+psycopg://me:secret@127.0.0.1:1/x", SharedServers.postgres),
        ("CONQUIET_TEST_RABBIT_URL", "amqp://guest:secret@127.0.0.1:1", SharedServers.rabbitmq),
    ],
)
def test_a_given_server_that_is_away_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, url: str, start: Callable[[SharedServers], object]
) -> None:
    monkeypatch.setenv(variable, url)

    with pytest.raises(
        ServerUnavailableError, match=rf"127\.0\.0\.1:1.*, given in {variable}, cannot be used"
    ) as caught:
        start(SharedServers())

    assert "secret" not in str(caught.value)


def test_the_text_of_the_driver_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It quotes what it cannot read of a URL, which may be a part of the password."""
    monkeypatch.setenv("CONQUIET_TEST_REDIS_URL", "redis://me:geh/eim@127.0.0.1:1/0")

    with pytest.raises(ServerUnavailableError, match="ValueError") as caught:
        SharedServers().redis()

    assert "geh" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url_of",
    [
        lambda: RedisServer(binary=sys.executable).url,
        lambda: RabbitMQServer(binary=sys.executable).url,
        lambda: RabbitMQServer(binary=sys.executable).management_url,
    ],
)
def test_a_server_has_no_url_before_its_start(url_of: Callable[[], str]) -> None:
    with pytest.raises(ServerStateError, match="no port and no URL before its start"):
        url_of()
