"""The doctor finds each planted fault, and reports nothing about a healthy set-up."""

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from redis import Redis
from sqlalchemy import Engine, create_engine, text

from conquiet.db.session import DbSession
from conquiet.management import RedisAdmin
from conquiet.management.doctor import Finding, Severity
from conquiet.management.doctor.mysql import examine_mysql
from conquiet.management.doctor.rabbit import examine_rabbit
from conquiet.management.doctor.redis import RedisLimits, examine_redis
from conquiet.management.doctor.retention import find_redelivery_sources
from conquiet.rabbitmq_api import RabbitApiError
from conquiet.testing import RabbitMQServer, RedisServer, wait_until
from conquiet.testing.discovery import MySQLFlavour, available_mysql_flavours
from conquiet.testing.mysql import MySQLServer
from conquiet.testing.ports import free_port
from conquiet.transactional import Outbox, create_tables


def serious(found: list[Finding]) -> set[str]:
    return {finding.check for finding in found if finding.severity is not Severity.NOTE}


def errors(found: list[Finding]) -> set[str]:
    return {finding.check for finding in found if finding.severity is Severity.ERROR}


# ---------------------------------------------------------------- Redis
EVERY_SECOND = ("--appendfsync", "everysec")


@pytest.fixture
def durable(private_redis: Callable[..., RedisServer]) -> Iterator[tuple[RedisAdmin, Redis]]:
    """A healthy Redis of the test's own."""
    healthy = private_redis(aof=True, extra_args=EVERY_SECOND)
    with Redis.from_url(healthy.url) as client, RedisAdmin(client) as server:
        yield server, client


def test_a_healthy_redis_is_fine(durable: tuple[RedisAdmin, Redis]) -> None:
    server, client = durable
    client.xgroup_create("orders", "billing", mkstream=True)
    client.xadd("orders", {"data": "{}"})
    client.xreadgroup("billing", "alice", {"orders": ">"})

    found = examine_redis(server)

    assert serious(found) == set()
    assert {finding.check for finding in found} == {"redis.client"}, "worth knowing, and no fault"


def test_settings_that_lose_messages_are_found(durable: tuple[RedisAdmin, Redis]) -> None:
    server, client = durable

    client.config_set("appendfsync", "no")
    client.config_set("maxmemory", "2mb")
    client.config_set("maxmemory-policy", "allkeys-lru")
    lossy = examine_redis(server)
    client.config_set("maxmemory-policy", "volatile-lru")
    volatile = examine_redis(server)
    client.config_set("appendonly", "no")
    forgetful = examine_redis(server)

    assert {"redis.persistence", "redis.eviction"} <= serious(lossy)
    assert errors(lossy) == {"redis.eviction"}
    assert errors(volatile) == set()
    assert "redis.persistence" in errors(forgetful)


def test_trouble_in_streams_is_found(durable: tuple[RedisAdmin, Redis]) -> None:
    server, client = durable
    client.xgroup_create("orders", "billing", mkstream=True)
    for _ in range(50):
        client.xadd("orders", {"data": "{}"})
    client.xreadgroup("billing", "alice", {"orders": ">"}, count=40)
    pending: Any = client.xpending_range("orders", "billing", "-", "+", 40)
    ids = [row["message_id"] for row in pending]
    client.xack("orders", "billing", *ids[:30])
    client.xclaim("orders", "billing", "alice", 0, [ids[35]], retrycount=50)
    limits = RedisLimits(max_lag=5, max_done=20, max_deliveries=10, alive_s=0.02)

    wait_until(lambda: "redis.dead_consumers" in serious(examine_redis(server, limits)))
    found = examine_redis(server, limits)

    assert serious(found) == {"redis.dead_consumers", "redis.deliveries", "redis.growth", "redis.lag"}
    by_check = {finding.check: finding for finding in found}
    assert "30 entries" in by_check["redis.growth"].what
    assert "10 entries" in by_check["redis.dead_consumers"].what
    # Before Redis 7.2 no death is proved.
    assert re.search("no live consumer|no consumer that is known to be alive", by_check["redis.lag"].what)
    assert all(finding.why and finding.fix for finding in found)


def test_entries_left_pending_under_a_live_consumer_are_found(durable: tuple[RedisAdmin, Redis]) -> None:
    """It continues to read under the same name and is alive; failed entries are not read again."""
    server, client = durable
    client.xgroup_create("orders", "billing", mkstream=True)
    ids: list[Any] = [client.xadd("orders", {"data": "{}"}) for _ in range(4)]
    client.xreadgroup("billing", "alice", {"orders": ">"}, count=3)
    client.xclaim("orders", "billing", "alice", 0, ids[:2], idle=700_000, justid=True)
    client.xclaim("orders", "billing", "alice", 0, ids[2:3], idle=590_000, justid=True)
    client.xreadgroup("billing", "bob", {"orders": ">"}, count=1)
    client.xreadgroup("billing", "alice", {"orders": ">"}, count=1)  # alive

    (found,) = [finding for finding in examine_redis(server) if finding.check == "redis.stranded"]

    assert "consumer 'alice' of 'orders', group 'billing', is alive and holds 2 entries" in found.what
    assert "run(recover=True)" in found.fix
    assert "conquiet reclaim orders billing --min-idle-s 600" in found.fix


def test_a_group_that_is_merely_behind_is_found(durable: tuple[RedisAdmin, Redis]) -> None:
    server, client = durable
    client.xgroup_create("orders", "billing", mkstream=True)
    for _ in range(20):
        client.xadd("orders", {"data": "{}"})
    client.xreadgroup("billing", "alice", {"orders": ">"}, count=1)

    found = examine_redis(server, RedisLimits(max_lag=10))

    assert serious(found) == {"redis.lag"}


def lag(found: list[Finding]) -> list[tuple[Severity, str]]:
    return [(one.severity, one.what.split("'orders' ")[1]) for one in found if one.check == "redis.lag"]


def test_work_that_the_server_has_lost_count_of_is_found(durable: tuple[RedisAdmin, Redis]) -> None:
    """After an XDEL in the middle Redis reports no lag, although entries wait."""
    server, client = durable
    ids = [client.xadd("orders", {"data": "{}"}) for _ in range(600)]
    client.xgroup_create("orders", "billing", "0")
    client.xdel("orders", ids[300])
    reported: Any = client.xinfo_groups("orders")
    assert reported[0]["lag"] is None

    without_consumer = examine_redis(server)
    client.xreadgroup("billing", "alice", {"orders": ">"}, count=1)
    fine = examine_redis(server, RedisLimits(max_lag=598))
    behind = examine_redis(server, RedisLimits(max_lag=597))
    far_behind = examine_redis(server, RedisLimits(max_lag=300))

    assert lag(without_consumer) == [(Severity.WARNING, "has 599 entries to do and no live consumer")]
    assert lag(fine) == []
    assert [what.split(",")[0] for _, what in lag(behind)] == ["is behind: at least 599 entries"]
    assert [what.split(",")[0] for _, what in lag(far_behind)] == ["is behind: at least 302 entries"]


def test_more_streams_than_are_checked_is_a_finding(durable: tuple[RedisAdmin, Redis]) -> None:
    server, client = durable
    for number in range(101):
        client.xadd(f"stream-{number}", {"data": "{}"})

    found = examine_redis(server)
    client.delete("stream-0")

    assert serious(found) == {"redis.incomplete"}
    assert serious(examine_redis(server)) == set()


def test_a_replica_and_a_missing_command_are_found(private_redis: Callable[..., RedisServer]) -> None:
    crippled = private_redis(aof=True, extra_args=(*EVERY_SECOND, "--rename-command", "XAUTOCLAIM", ""))
    with Redis.from_url(crippled.url) as client, RedisAdmin(client) as server:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")

        found = examine_redis(server)

    assert {"redis.commands", "redis.role"} <= errors(found)


# ---------------------------------------------------------------- MySQL
@pytest.fixture
def engine(db_url: str) -> Iterator[Engine]:
    engine = create_engine(db_url)
    yield engine
    engine.dispose()


def do(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


OF_TABLES = {"mysql.engine", "mysql.tables", "mysql.indexes"}


def beyond_speed(found: list[Finding]) -> set[str]:
    """The private server trades durability for speed, and the doctor reports that correctly. It is ignored here."""
    return serious(found) - {"mysql.durability"}


def test_a_healthy_database_is_fine(private_mysql: Callable[..., MySQLServer]) -> None:
    """On a separate server: on the shared one other tests leave waits, old transactions and a peak of connections."""
    healthy = create_engine(private_mysql().create_database("healthy"))
    create_tables(healthy)

    assert beyond_speed(examine_mysql(healthy)) == set()
    healthy.dispose()


def test_commits_that_are_not_on_disk_are_found(mysql_server: MySQLServer, engine: Engine) -> None:
    with engine.connect() as connection:
        setting = connection.execute(text("SELECT @@innodb_flush_log_at_trx_commit")).scalar()

    assert ("mysql.durability" in serious(examine_mysql(engine))) == (setting != 1)


def test_tables_without_transactions_missing_ones_and_missing_indexes_are_found(engine: Engine) -> None:
    do(engine, "CREATE TABLE old (id INT PRIMARY KEY) ENGINE = MyISAM")
    bare = examine_mysql(engine)
    create_tables(engine)
    do(engine, "ALTER TABLE conquiet_inbox DROP PRIMARY KEY")
    broken = examine_mysql(engine)

    # On the shared server: connections, waits and settings of other tests are not of this database.
    assert {"mysql.engine", "mysql.tables"} == serious(bare) & OF_TABLES
    assert {"mysql.engine", "mysql.indexes"} == errors(broken) & OF_TABLES


def test_outbox_rows_that_no_relay_takes_are_found(engine: Engine) -> None:
    create_tables(engine)
    with DbSession(engine) as session:
        Outbox().add(session, "leger", {"n": 1})
    fresh = {one.check for one in examine_mysql(engine)}
    with DbSession(engine) as session:
        session.execute("UPDATE conquiet_outbox SET created_at = '2026-01-01', due_at = '2026-01-01'")

    (found,) = [one for one in examine_mysql(engine) if one.check == "mysql.outbox_overdue"]

    assert "mysql.outbox_overdue" not in fresh
    assert "'leger'" in found.what


def test_pools_larger_than_the_server_are_found(engine: Engine) -> None:
    create_tables(engine)

    assert errors(examine_mysql(engine, wanted_connections=1_000_000)) == {"mysql.max_connections"}


def test_lock_waits_and_forgotten_transactions_are_found(engine: Engine) -> None:
    create_tables(engine)
    do(engine, "CREATE TABLE account (id INT PRIMARY KEY, cents INT)", "INSERT INTO account VALUES (1, 100)")

    def wait_in_line() -> None:
        do(engine, "UPDATE account SET cents = 2 WHERE id = 1")

    with engine.begin() as holder:
        holder.execute(text("UPDATE account SET cents = 1 WHERE id = 1"))
        waiter = threading.Thread(target=wait_in_line)
        waiter.start()
        # InnoDB renews the snapshot of lock waits only if it was not read for 100 ms.
        wait_until(lambda: "mysql.lock_waits" in serious(examine_mysql(engine, slow_s=0)), interval_s=0.15)
        wait_until(lambda: "mysql.long_transactions" in serious(examine_mysql(engine, slow_s=0)), interval_s=0.15)
    waiter.join(60)

    wait_until(lambda: beyond_speed(examine_mysql(engine)) == set(), interval_s=0.15)


@pytest.mark.parametrize("zone", ["+09:00", "-08:00"])
def test_ages_do_not_depend_on_the_time_zone_of_the_session(db_url: str, engine: Engine, zone: str) -> None:
    """InnoDB reports times in the machine's zone. Nine hours off, every transaction counts as forgotten, or none."""
    create_tables(engine)
    do(engine, "CREATE TABLE account (id INT PRIMARY KEY, cents INT)", "INSERT INTO account VALUES (1, 100)")
    elsewhere = create_engine(db_url, connect_args={"init_command": f"SET time_zone = '{zone}'"})

    def said(check: str, slow_s: int) -> list[str]:
        return [one.what for one in examine_mysql(elsewhere, slow_s=slow_s) if one.check == check]

    with engine.begin() as holder:
        holder.execute(text("UPDATE account SET cents = 1 WHERE id = 1"))
        waiter = threading.Thread(target=lambda: do(engine, "UPDATE account SET cents = 2 WHERE id = 1"))
        waiter.start()
        wait_until(lambda: said("mysql.lock_waits", 60), interval_s=0.1)
        waits = said("mysql.lock_waits", 60)
        young = said("mysql.long_transactions", 60)
        wait_until(lambda: said("mysql.long_transactions", 0), interval_s=0.1)
    waiter.join(60)
    elsewhere.dispose()

    assert young == []
    assert re.search(r"waited for \d s ", waits[0]), waits


GALERA = Path("/usr/lib/galera/libgalera_smm.so")


class GaleraNode(MySQLServer):
    """Chooses the port of its cluster together with its own: when one was taken meanwhile, it starts on new ones."""

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self._extra_args = (
            "--wsrep-on=ON",
            f"--wsrep-provider={GALERA}",
            f"--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{free_port()};gcache.size=1M",
            "--wsrep-cluster-address=gcomm://",
            "--wsrep-node-address=127.0.0.1",
            "--wsrep-sst-method=rsync",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
        )


@pytest.mark.skipif(MySQLFlavour.MARIADB not in available_mysql_flavours(), reason="Galera is a part of MariaDB")
def test_a_galera_node_is_found() -> None:
    """A cluster of one is a cluster: the locks of a single server are promised no more."""
    assert GALERA.exists(), "Galera's provider is missing; install galera-4, on which Debian's mariadb-server depends"
    with GaleraNode(flavour=MySQLFlavour.MARIADB) as server:
        node = create_engine(server.url)
        found = examine_mysql(node)
        node.dispose()

    assert "mysql.galera" in errors(found)


# ---------------------------------------------------------------- RabbitMQ
@pytest.fixture
def channel(amqp_url: str) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    yield connection.channel()
    connection.close()


def vhost(amqp_url: str) -> str:
    return amqp_url.rsplit("/", 1)[1]


def test_a_healthy_broker_is_fine(channel: BlockingChannel, amqp_url: str, rabbitmq_server: RabbitMQServer) -> None:
    channel.queue_declare("orders.dead", durable=True)
    channel.queue_declare(
        "orders",
        durable=True,
        arguments={
            "x-queue-type": "quorum",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "orders.dead",
            "x-delivery-limit": 5,
        },
    )

    found = examine_rabbit(rabbitmq_server.management_url, vhost(amqp_url), queues=("orders",))

    assert serious(found) == set()


def test_queues_that_lose_messages_are_found(
    channel: BlockingChannel, amqp_url: str, rabbitmq_server: RabbitMQServer, no_delivery_limit: dict[str, int]
) -> None:
    channel.queue_declare("plain", durable=True)
    channel.queue_declare("fleeting", durable=False)
    endless = {"x-queue-type": "quorum", "x-dead-letter-exchange": "", **no_delivery_limit}
    channel.queue_declare("endless", durable=True, arguments=endless)
    channel.basic_publish("", "plain", b"{}")

    def found() -> list[Finding]:
        return examine_rabbit(rabbitmq_server.management_url, vhost(amqp_url), queues=("nowhere",))

    wait_until(lambda: "rabbit.consumers" in serious(found()), interval_s=0.2)
    assert serious(found()) == {
        "rabbit.consumers",
        "rabbit.dead_letters",
        "rabbit.delivery_limit",
        "rabbit.durability",
        "rabbit.missing_queue",
    }
    assert errors(found()) == {"rabbit.durability", "rabbit.missing_queue"}


def test_a_queue_beyond_the_first_page_is_there_and_is_examined(
    channel: BlockingChannel, amqp_url: str, rabbitmq_server: RabbitMQServer
) -> None:
    """The broker lists 200 queues at a time. A named one is requested by its name."""
    for number in range(205):
        channel.queue_declare(f"many.{number:03}", durable=True, arguments={"x-dead-letter-exchange": ""})
    channel.queue_declare("zz/last & least", durable=False, arguments={"x-dead-letter-exchange": ""})

    found = examine_rabbit(
        rabbitmq_server.management_url, vhost(amqp_url), queues=("zz/last & least", "many.001", "nowhere")
    )

    said = [(one.check, one.what) for one in found if one.severity is not Severity.NOTE]
    assert sorted(said) == [
        ("rabbit.durability", "queue 'zz/last & least' is not durable"),
        ("rabbit.incomplete", "only 201 of 206 queues were checked"),
        ("rabbit.missing_queue", "there is no queue 'nowhere'"),
    ]


def test_an_exclusive_queue_for_replies_is_no_fault(
    channel: BlockingChannel, amqp_url: str, rabbitmq_server: RabbitMQServer
) -> None:
    channel.queue_declare("", exclusive=True)

    assert serious(examine_rabbit(rabbitmq_server.management_url, vhost(amqp_url))) == set()


def test_the_queue_behind_a_dead_letter_exchange_needs_none_and_no_limit(
    channel: BlockingChannel,
    amqp_url: str,
    rabbitmq_server: RabbitMQServer,
    rabbit_release: tuple[int, int],
    no_delivery_limit: dict[str, int],
) -> None:
    quorum = {"x-queue-type": "quorum"}
    channel.exchange_declare("orders.dlx", "fanout", durable=True)
    channel.queue_declare(
        "orders", durable=True, arguments=quorum | {"x-dead-letter-exchange": "orders.dlx", "x-delivery-limit": 5}
    )
    channel.queue_declare("orders.dead", durable=True, arguments=quorum | no_delivery_limit)
    channel.queue_declare("orders.default", durable=True, arguments=quorum)
    channel.queue_declare("orders.kept", durable=True, arguments=quorum | {"x-delivery-limit": 3})
    for name in ("orders.dead", "orders.default", "orders.kept"):
        channel.queue_bind(name, "orders.dlx", "")

    found = examine_rabbit(rabbitmq_server.management_url, vhost(amqp_url))

    said = {one.what: one.why for one in found if one.severity is not Severity.NOTE}
    expected = {"dead-letter queue 'orders.kept' has a delivery limit of 3"}
    if rabbit_release >= (4, 0):
        expected.add("dead-letter queue 'orders.default' has a delivery limit of 20")
    assert said.keys() == expected
    why = "a message keeps the count" if rabbit_release >= (4, 3) else "each peek at a dead letter counts"
    assert all(reason.startswith(why) for reason in said.values())


def test_a_consumer_timeout_that_is_too_short_is_found(
    channel: BlockingChannel, amqp_url: str, rabbitmq_server: RabbitMQServer
) -> None:
    for name, timeout_ms in (("hasty", 5_000), ("patient", 3_600_000)):  # on a classic one 4.3 refuses it
        arguments = {"x-queue-type": "quorum", "x-consumer-timeout": timeout_ms, "x-dead-letter-exchange": "amq.fanout"}
        channel.queue_declare(name, durable=True, arguments=arguments)

    found = examine_rabbit(rabbitmq_server.management_url, vhost(amqp_url), queues=())

    (finding,) = [one for one in found if one.check == "rabbit.consumer_timeout"]
    assert "'hasty' has a consumer timeout of 5 s" in finding.what


def test_a_broker_that_does_not_answer_is_not_a_finding() -> None:
    with pytest.raises(RabbitApiError):
        examine_rabbit("http://127.0.0.1:1")


def test_each_source_of_a_redelivery_is_found(server: RedisAdmin, client: Redis, key_prefix: str) -> None:
    stream = f"{key_prefix}orders"
    day_ms = 86_400_000
    now_ms = server.now_ms()
    client.xadd(stream, {"data": "{}"}, id=f"{now_ms - 5 * day_ms}-0")
    client.xgroup_create(stream, "billing", "0-0")
    client.xreadgroup("billing", "alice", {stream: ">"})
    client.xadd(f"{{{stream}}}:dead", {"data": "{}"}, id=f"{now_ms - 40 * day_ms}-0")
    client.zadd(f"{{{stream}}}:delayed", {"{}": now_ms + 2 * day_ms})

    found = {one.what: round(one.after_s / 86_400) for one in find_redelivery_sources(server) if one.stream == stream}

    assert found == {"a pending entry": 5, "a dead letter": 40, "a delayed message": 2}


def test_what_comes_back_from_another_partition_is_found(server: RedisAdmin, client: Redis, key_prefix: str) -> None:
    stream = f"{key_prefix}orders"
    client.hset(f"{{{stream}}}:partitions", "count", "2")
    old_ms = server.now_ms() - 40 * 86_400_000
    for name in (stream, f"{{{stream}:1}}"):
        client.xadd(name, {"data": "{}"})
    client.xadd(f"{{{stream}:1}}:dead", {"data": "{}"}, id=f"{old_ms}-0")

    found = [(one.what, round(one.after_s / 86_400)) for one in find_redelivery_sources(server) if one.stream == stream]

    assert found == [("a dead letter", 40)]
