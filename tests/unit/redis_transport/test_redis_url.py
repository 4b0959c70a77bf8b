"""URLs of a Redis Cluster."""

import pytest

from conquiet.errors import ConfigurationError
from conquiet.redis_transport.client import AsyncClient, SyncClient, cluster_seeds, is_cluster
from conquiet.redis_transport.redis_url import client_from_url


def test_the_option_makes_a_client_of_a_cluster_with_all_its_hosts() -> None:
    url = "redis://user:secret@one:7000,two:7001,three/0?cluster=true&socket_connect_timeout=3"
    client = client_from_url(SyncClient.from_url, url)
    seeds = cluster_seeds(client)

    assert seeds.addresses == [("one", 7000), ("two", 7001), ("three", 6379)]
    assert seeds.template.connection_pool.connection_kwargs["password"] == "secret"
    assert is_cluster(client_from_url(AsyncClient.from_url, "rediss://one:7000?cluster=1"))


@pytest.mark.parametrize("url", ["redis://one:7000/0", "redis://one:7000/0?cluster=false"])
def test_without_it_the_client_is_one_of_a_single_server(url: str) -> None:
    assert not is_cluster(client_from_url(SyncClient.from_url, url))


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://one,two/0", "several hosts needs the option"),
        ("redis://one/0?cluster=maybe", "must be true or false"),
        ("redis://one/3?cluster=true", "one database only"),
        ("unix:///run/redis.sock?cluster=true", "is reached by TCP"),
        ("redis://:se@cret@one/0?cluster=true&bogus=1", "cannot be read"),
    ],
)
def test_a_url_that_cannot_work_is_refused_and_not_quoted(url: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        client_from_url(SyncClient.from_url, url)

    assert "cret" not in str(caught.value)
