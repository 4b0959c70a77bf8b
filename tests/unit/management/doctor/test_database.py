"""Pools, processes, hosts and concurrency, compared."""

import pytest

from conquiet.errors import ConfigurationError
from conquiet.management.doctor.database import PoolPlan, examine_pools


def test_connections_are_pools_and_relays_of_all_processes() -> None:
    assert PoolPlan(pool=15, processes=4, hosts=3).connections == 192


def test_a_pool_smaller_than_the_concurrency_is_a_warning() -> None:
    (found,) = examine_pools(PoolPlan(pool=5, concurrency=20))

    assert found.check == "database.pool"
    assert "pool_size=20" in found.fix
    assert examine_pools(PoolPlan(pool=20, concurrency=20)) == []


def test_a_plan_without_processes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="processes"):
        PoolPlan(pool=5, processes=0)
