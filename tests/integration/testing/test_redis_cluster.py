"""The private Redis Cluster has the events of a cluster in operation, and recovers."""

from collections.abc import Callable

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from conquiet.testing import RedisClusterServer, ServerStateError, wait_until
from conquiet.testing.cluster_slots import key_slot
from conquiet.testing.discovery import find_valkey


def test_three_masters_share_all_slots_and_have_a_replica_each(redis_cluster: RedisClusterServer) -> None:
    masters = redis_cluster.masters()

    assert len(masters) == 3
    assert len({redis_cluster.replica_of(master) for master in masters}) == 3
    assert (redis_cluster.name, len(redis_cluster.nodes)) == ("redis cluster", 6)
    with pytest.raises(ServerStateError):
        redis_cluster.start()


def test_a_slot_moves_key_by_key_and_redirects_meanwhile(redis_cluster: RedisClusterServer) -> None:
    client = redis.RedisCluster.from_url(redis_cluster.node_url)
    for number in range(3):
        client.set(f"{{moving}}:{number}", number)
    source = redis_cluster.master_of("{moving}")
    steps = redis_cluster.moving_slot("{moving}")
    seen = [next(steps), next(steps)]
    direct = redis.Redis(port=source.port)
    with pytest.raises(redis.exceptions.AskError):
        direct.get(seen[1])
    seen += list(steps)

    assert seen[0::4] == ["opened", "closed"]
    assert redis_cluster.master_of("{moving}") is not source
    assert [client.get(f"{{moving}}:{number}") for number in range(3)] == [b"0", b"1", b"2"]
    client.close()
    direct.close()


def test_the_replica_of_a_killed_master_takes_over(redis_cluster: RedisClusterServer) -> None:
    master = redis_cluster.master_of("orders")
    master.call("SET", "orders", "1")
    replica = redis_cluster.replica_of(master)
    wait_until(lambda: replica.call("DBSIZE") == 1)

    dead = redis_cluster.kill_master("orders")
    promoted = redis_cluster.master_of("orders")
    promoted.call("SET", "orders", "2")
    redis_cluster.revive(dead)

    assert (dead, promoted) == (master, replica)
    assert redis_cluster.replica_of(promoted) is dead
    wait_until(lambda: dead.call("DBSIZE") == 1)


def test_a_paused_node_answers_again_after_the_block(redis_cluster: RedisClusterServer) -> None:
    master = redis_cluster.master_of("orders")
    client = redis.Redis(port=master.port, socket_timeout=0.2, retry=Retry(NoBackoff(), 0))

    with redis_cluster.pause_node(master), pytest.raises(redis.TimeoutError):
        client.ping()

    assert client.ping()
    client.close()


def test_a_cluster_of_valkey_servers_works_alike(
    private_redis_cluster: Callable[..., RedisClusterServer],
) -> None:
    cluster = private_redis_cluster(replicas=0, binary=find_valkey())

    assert cluster.name == "valkey cluster"
    assert cluster.master_of("orders").call("CLUSTER", "KEYSLOT", "orders") == key_slot("orders")
    assert cluster.move_slot("orders") is cluster.master_of("orders")
