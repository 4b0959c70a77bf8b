"""The HTTP client of the management API."""

import pytest

from conquiet.rabbitmq_api import default_api_url


@pytest.mark.parametrize(
    ("amqp", "http"),
    [
        ("amqp://host", "http://host:15672"),
        ("amqp://user:pass@host:5673/shop", "http://user:pass@host:15672"),
        ("amqps://host", "https://host:15671"),
        ("amqp://user:pass@[::1]:5673/shop", "http://user:pass@[::1]:15672"),
        ("amqp://", "http://localhost:15672"),
    ],
)
def test_the_default_api_url_is_on_the_host_of_the_broker(amqp: str, http: str) -> None:
    assert default_api_url(amqp) == http
