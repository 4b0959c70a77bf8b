"""Checks of MySQL and MariaDB as pure functions."""

import pytest

from conquiet.management.doctor import Severity
from conquiet.management.doctor.mysql import CHECKS as MYSQL_CHECKS
from conquiet.management.doctor.mysql import MySQLFacts

HEALTHY = {
    "version": "8.4.0",
    "transaction_isolation": "REPEATABLE-READ",
    "innodb_lock_wait_timeout": "50",
    "lock_wait_timeout": "60",
    "max_connections": "151",
    "sql_mode": "STRICT_TRANS_TABLES",
    "innodb_flush_log_at_trx_commit": "1",
}


def mysql(changed: dict[str, str] | None = None, *, used: int = 1) -> dict[str, Severity]:
    facts = MySQLFacts(settings=HEALTHY | (changed or {}), connections=used)
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
def test_a_dangerous_setting_of_mysql_is_found(changed: dict[str, str], check: str, severity: Severity) -> None:
    assert mysql() == {}
    assert mysql(changed) == {check: severity}


def test_mariadb_names_its_isolation_level_differently() -> None:
    facts = {key: value for key, value in HEALTHY.items() if key != "transaction_isolation"}
    mariadb = {"version": "10.11.2-MariaDB", "tx_isolation": "SERIALIZABLE"}
    found = MySQLFacts(settings=facts | mariadb, connections=1)

    assert [finding.check for check in MYSQL_CHECKS for finding in check(found)] == ["mysql.isolation"]


def test_a_server_that_was_nearly_full_is_found() -> None:
    assert mysql(used=140) == {"mysql.max_connections": Severity.WARNING}
