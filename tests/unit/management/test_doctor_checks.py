"""The doctor's checks as pure functions: what cannot be planted on a server at hand."""

import pytest

from conquiet.errors import ConfigurationError
from conquiet.management.doctor import Severity
from conquiet.management.doctor.mysql import CHECKS as MYSQL_CHECKS
from conquiet.management.doctor.mysql import MySQLFacts
from conquiet.management.doctor.rabbit import CHECKS as RABBIT_CHECKS
from conquiet.management.doctor.rabbit import RabbitFacts, examine_rabbit
from conquiet.management.doctor.redis import CHECKS as REDIS_CHECKS
from conquiet.management.doctor.redis import RedisFacts
from conquiet.management.models import GroupFacts, StreamFacts
from conquiet.management.rabbit_api import management_url

HEALTHY = {
    "version": "8.4.0",
    "transaction_isolation": "REPEATABLE-READ",
    "innodb_lock_wait_timeout": "50",
    "lock_wait_timeout": "60",
    "max_connections": "151",
    "sql_mode": "STRICT_TRANS_TABLES",
    "innodb_flush_log_at_trx_commit": "1",
}
INDEXES = {
    "conquiet_inbox": frozenset({"PRIMARY", "by_age"}),
    "conquiet_outbox": frozenset({"PRIMARY", "by_due", "by_key"}),
}


def mysql(changed: dict[str, str] | None = None, *, used: int = 1) -> dict[str, Severity]:
    facts = MySQLFacts(HEALTHY | (changed or {}), used, (), INDEXES, (), ())
    return {finding.check: finding.severity for check in MYSQL_CHECKS for finding in check(facts)}


@pytest.mark.parametrize(
    ("changed", "check", "severity"),
    [
        ({"version": "5.7.44"}, "mysql.version", Severity.ERROR),
        ({"version": "10.5.1-MariaDB"}, "mysql.version", Severity.ERROR),
        ({"transaction_isolation": "READ-UNCOMMITTED"}, "mysql.isolation", Severity.ERROR),
        ({"transaction_isolation": "SERIALIZABLE"}, "mysql.isolation", Severity.WARNING),
        ({"innodb_lock_wait_timeout": "1"}, "mysql.innodb_lock_wait_timeout", Severity.WARNING),
        ({"innodb_lock_wait_timeout": "500"}, "mysql.innodb_lock_wait_timeout", Severity.WARNING),
        ({"lock_wait_timeout": "86400"}, "mysql.lock_wait_timeout", Severity.NOTE),
        ({"innodb_flush_log_at_trx_commit": "2"}, "mysql.durability", Severity.WARNING),
        ({"sql_mode": "ONLY_FULL_GROUP_BY"}, "mysql.sql_mode", Severity.WARNING),
        ({"wsrep_on": "ON"}, "mysql.galera", Severity.ERROR),
    ],
)
def test_a_setting_of_mysql_that_bites_is_found(changed: dict[str, str], check: str, severity: Severity) -> None:
    assert mysql() == {}
    assert mysql(changed) == {check: severity}


def test_mariadb_names_its_isolation_level_differently() -> None:
    facts = {key: value for key, value in HEALTHY.items() if key != "transaction_isolation"}
    found = MySQLFacts(facts | {"version": "10.11.2-MariaDB", "tx_isolation": "SERIALIZABLE"}, 1, (), INDEXES, (), ())

    assert [finding.check for check in MYSQL_CHECKS for finding in check(found)] == ["mysql.isolation"]


def test_a_server_that_was_nearly_full_is_found() -> None:
    assert mysql(used=140) == {"mysql.max_connections": Severity.WARNING}


def rabbit(queue: dict[str, object] | None = None, *, version: str = "3.13.0") -> set[str]:
    healthy = {"name": "orders", "durable": True, "type": "quorum"} | {
        "arguments": {"x-dead-letter-exchange": "", "x-delivery-limit": 5}
    }
    facts = RabbitFacts(version, (healthy | (queue or {}),))
    return {finding.check for check in RABBIT_CHECKS for finding in check(facts)}


@pytest.mark.parametrize(
    ("queue", "checks"),
    [
        ({}, set()),
        ({"type": "classic"}, {"rabbit.queue_type"}),
        ({"messages_unacknowledged": 20_000}, {"rabbit.unacked"}),
        ({"arguments": {}, "effective_policy_definition": {"dead-letter-exchange": "x", "delivery-limit": 3}}, set()),
        ({"effective_policy_definition": {"consumer-timeout": 5_000}}, {"rabbit.consumer_timeout"}),
        ({"arguments": {"x-dead-letter-exchange": ""}}, {"rabbit.delivery_limit"}),
    ],
)
def test_a_queue_that_bites_is_found(queue: dict[str, object], checks: set[str]) -> None:
    assert rabbit(queue) == checks


def test_from_4_3_on_a_classic_queue_has_no_consumer_timeout() -> None:
    hasty: dict[str, object] = {"effective_policy_definition": {"consumer-timeout": 5_000}}
    classic = hasty | {"type": "classic"}

    assert rabbit(hasty, version="4.3.0") == {"rabbit.consumer_timeout"}
    assert rabbit(classic, version="4.2.0") == {"rabbit.consumer_timeout", "rabbit.queue_type"}
    assert rabbit(classic, version="4.3.0") == {"rabbit.queue_type"}


def test_from_4_0_on_quorum_queues_have_a_limit_by_default() -> None:
    assert rabbit({"arguments": {"x-dead-letter-exchange": ""}}, version="4.0.1") == set()
    assert rabbit(version="3.9.29") == {"rabbit.version"}


def dead_letters(arguments: dict[str, object], *, version: str = "3.13.0", bound: bool = False) -> list[str]:
    """What is said about the queue that the rejects of ``orders`` end in."""
    to = {"x-dead-letter-exchange": "orders.dlx"} if bound else {"x-dead-letter-routing-key": "orders.dead"}
    orders = {
        "name": "orders",
        "type": "quorum",
        "arguments": {"x-dead-letter-exchange": "", "x-delivery-limit": 5} | to,
    }
    dead = {"name": "orders.dead", "type": "quorum", "arguments": arguments}
    facts = RabbitFacts(version, (orders, dead), bound_to_dlx=frozenset({"orders.dead"} if bound else ()))
    return [finding.what for check in RABBIT_CHECKS for finding in check(facts)]


@pytest.mark.parametrize("bound", [True, False])
def test_a_dead_letter_queue_is_not_told_to_have_a_limit_but_warned_of_one(*, bound: bool) -> None:
    """With a limit, looking deletes dead letters: what was looked at too often or, from 4.3 on, came with too many."""
    assert dead_letters({}, bound=bound) == []
    assert dead_letters({"x-delivery-limit": 5}, bound=bound) == [
        "dead-letter queue 'orders.dead' has a delivery limit of 5"
    ]
    for version in ("4.1.0", "4.3.0"):
        assert dead_letters({}, bound=bound, version=version) == [
            "dead-letter queue 'orders.dead' has a delivery limit of 20"
        ]
    assert dead_letters({"x-delivery-limit": -1}, bound=bound, version="4.1.0") == []


def test_a_queue_that_passes_rejects_on_may_have_a_limit() -> None:
    """A queue for retries gets rejects, and what is given up there is not lost."""
    assert dead_letters({"x-dead-letter-exchange": "", "x-delivery-limit": 5}) == []


def test_a_limit_that_was_switched_off_is_none() -> None:
    arguments = {"x-dead-letter-exchange": "", "x-delivery-limit": -1}
    assert rabbit({"arguments": arguments}, version="4.1.0") == {"rabbit.delivery_limit"}


def test_an_exclusive_queue_is_meant_to_go_with_its_connection() -> None:
    fleeting = {"durable": False, "type": "classic", "arguments": {}}

    assert rabbit(fleeting) == {"rabbit.durability", "rabbit.dead_letters"}
    assert rabbit(fleeting | {"exclusive": True}) == set()


@pytest.mark.parametrize(
    "url", ["host:15672", "amqp://host:1", "localhost", "http://", "", "http://[::1", "http://u:geheim@host:port"]
)
def test_a_management_url_without_a_scheme_or_a_host_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="http://user:password@host:15672") as refused:
        examine_rabbit(url)

    assert refused.value.__context__ is None, "urllib's own words quote the URL"


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
def test_the_management_api_is_looked_for_beside_the_broker(amqp: str, http: str) -> None:
    assert management_url(amqp) == http


@pytest.mark.parametrize(
    ("info", "client", "check"),
    [
        ({"redis_version": "6.0.16"}, "8.1.0", "redis.version"),
        ({"redis_version": "7.2.0"}, "5.0.0", "redis.client"),
        ({"redis_version": "7.2.0", "maxmemory": "100", "used_memory": "95"}, "8.1.0", "redis.memory"),
    ],
)
def test_old_versions_and_a_full_redis_are_found(info: dict[str, str], client: str, check: str) -> None:
    facts = RedisFacts({"aof_enabled": "1"} | info, {}, (), (), (), client)
    found = {finding.check for one in REDIS_CHECKS for finding in one(facts) if finding.severity is not Severity.NOTE}

    assert found == {check}


def test_a_lag_that_nobody_knows_is_work_to_do() -> None:
    """Redis 6.2 counts none; what could not be counted either is still no zero."""
    group = GroupFacts("billing", None, 0, "0-0", 5.0, (), b"billing")
    stream = StreamFacts("orders", 3, "1-0", "3-0", None, 0, 0, (), (group,), b"orders")
    facts = RedisFacts({"aof_enabled": "1", "redis_version": "6.2.0"}, {}, (), (stream,), (), "")

    (finding,) = [finding for one in REDIS_CHECKS for finding in one(facts)]

    assert finding.what == "group 'billing' of 'orders' has an unknown number of entries to do and no live consumer"
