"""The HTTP client of the management API."""

from typing import Any

import pytest

from conquiet.errors import ConfigurationError
from conquiet.rabbitmq_api import RabbitApi, default_api_url, has_dead_letter_exchange, vhost_of


@pytest.mark.parametrize(
    ("amqp", "http"),
    [
        ("amqp://host", "http://host:15672"),
        ("amqp://user:pass@host:5673/shop", "http://user:pass@host:15672"),
        ("amqps://host", "https://host:15671"),
        ("amqp://user:pass@[::1]:5673/shop", "http://user:pass@[::1]:15672"),
        ("amqp://", "http://localhost:15672"),
        ("amqps://host/%2F?heartbeat=9&cacertfile=/etc/ca.pem", "https://host:15671?cacertfile=/etc/ca.pem"),
        ("amqp://one/shop,amqp://two/shop", "http://one:15672"),
    ],
)
def test_the_default_api_url_is_on_the_host_of_the_broker(amqp: str, http: str) -> None:
    assert default_api_url(amqp) == http


@pytest.mark.parametrize(
    ("amqp", "vhost"),
    [
        ("amqp://host", "/"),
        ("amqp://host/%2F", "/"),
        ("amqps://host/shop?cacertfile=/etc/ca.pem", "shop"),
        ("amqp://one/a%2Fb,amqp://two/a%2Fb", "a/b"),
    ],
)
def test_the_vhost_of_a_cluster_is_that_of_its_first_node(amqp: str, vhost: str) -> None:
    assert vhost_of(amqp) == vhost


@pytest.mark.parametrize("url", ["https://[::1?cacertfile=/etc/ca.pem", "host:15671?cacertfile=/etc/ca.pem"])
def test_a_url_of_the_api_that_cannot_be_read_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="the URL of RabbitMQ's management API cannot be read"):
        RabbitApi(url)


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ({"arguments": {"x-dead-letter-exchange": "dlx"}}, True),
        ({"arguments": {"x-dead-letter-exchange": ""}}, True),
        ({"arguments": {}, "effective_policy_definition": {"dead-letter-exchange": "dlx"}}, True),
        ({"arguments": {}, "effective_policy_definition": {}}, False),
        ({"arguments": [], "effective_policy_definition": None}, False),
        (None, False),
    ],
)
def test_a_dead_letter_exchange_is_read_from_arguments_or_policy(description: Any, *, expected: bool) -> None:
    assert has_dead_letter_exchange(description) is expected
