"""Clones of the caller's client."""

from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from conquiet.errors import ConfigurationError
from conquiet.redis_transport.client import clone_async, clone_sync


@pytest.mark.parametrize("given", [redis.Redis(port=1), redis.asyncio.Redis(port=1)], ids=["sync", "asyncio"])
def test_a_clone_never_waits_without_bound_and_never_repeats(given: redis.Redis | redis.asyncio.Redis) -> None:
    for clone in (clone_sync(given, socket_timeout_s=3.0), clone_async(given, socket_timeout_s=3.0)):
        settings = clone.connection_pool.connection_kwargs
        connection = clone.connection_pool.connection_class(**settings)

        assert settings["socket_timeout"] == 3.0
        assert settings["socket_connect_timeout"] is not None
        assert connection.retry._retries == 0
        assert connection.health_check_interval == 0


def test_a_clone_of_the_other_kind_asks_the_same_sentinels() -> None:
    sentinel: Any = redis.sentinel.Sentinel(  # type: ignore[no-untyped-call]
        [("127.0.0.1", 1), ("127.0.0.1", 2)],
        min_other_sentinels=1,
        sentinel_kwargs={"password": "s3cret", "username": "watcher", "socket_timeout": 2.0},
        force_master_ip="10.0.0.9",
    )

    clone: Any = clone_async(sentinel.master_for("orders"))
    manager = clone.connection_pool.sentinel_manager

    assert isinstance(manager, redis.asyncio.sentinel.Sentinel)
    assert manager.min_other_sentinels == 1
    assert manager._force_master_ip == "10.0.0.9"
    asked = [one.connection_pool.connection_kwargs for one in manager.sentinels]
    assert [(one["host"], one["port"]) for one in asked] == [("127.0.0.1", 1), ("127.0.0.1", 2)]
    assert {(one["username"], one["password"], one["socket_timeout"]) for one in asked} == {("watcher", "s3cret", 2.0)}


def test_a_setting_that_protects_a_connection_is_not_dropped() -> None:
    given = redis.Redis(ssl=True, ssl_validate_ocsp=True)

    with pytest.raises(ConfigurationError, match="ssl_validate_ocsp"):
        clone_async(given)
