"""Each check of the doctor over facts that are given, without a server."""

from dataclasses import replace

import pytest

from conquiet.management.doctor.findings import Severity, run_checks
from conquiet.management.doctor.postgres import CHECKS, PostgresFacts
from conquiet.transactional.migrations import TableLayout
from conquiet.transactional.schema import SCHEMA_VERSION

INBOX = TableLayout(
    "conquiet_inbox",
    exists=True,
    recorded=SCHEMA_VERSION,
    missing_columns=(),
    missing_indexes=(),
    statements=(),
)
OUTBOX = replace(INBOX, table="conquiet_outbox")
HEALTHY = PostgresFacts(
    settings={
        "server_version": "15.18",
        "server_version_num": "150018",
        "default_transaction_isolation": "read committed",
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        "max_connections": "100",
        "default_transaction_read_only": "off",
    },
    is_standby=False,
    connections=5,
    layouts=(INBOX, OUTBOX),
    long_transactions=(),
)


def with_setting(name: str, value: str) -> PostgresFacts:
    return replace(HEALTHY, settings={**HEALTHY.settings, name: value})


def test_a_healthy_server_has_no_finding() -> None:
    assert run_checks(CHECKS, HEALTHY) == []


@pytest.mark.parametrize(
    ("facts", "check", "severity"),
    [
        (with_setting("server_version_num", "120009"), "postgres.version", Severity.ERROR),
        (with_setting("default_transaction_isolation", "serializable"), "postgres.isolation", Severity.WARNING),
        (with_setting("default_transaction_read_only", "on"), "postgres.read_only", Severity.ERROR),
        (replace(HEALTHY, is_standby=True), "postgres.read_only", Severity.ERROR),
        (with_setting("fsync", "off"), "postgres.durability", Severity.ERROR),
        (with_setting("synchronous_commit", "off"), "postgres.synchronous_commit", Severity.WARNING),
        (replace(HEALTHY, wanted_connections=101), "postgres.max_connections", Severity.ERROR),
        (replace(HEALTHY, connections=81), "postgres.max_connections", Severity.WARNING),
        (replace(HEALTHY, layouts=(replace(INBOX, exists=False), OUTBOX)), "postgres.tables", Severity.WARNING),
        (replace(HEALTHY, without_key={"conquiet_inbox"}), "postgres.indexes", Severity.ERROR),
        (
            replace(HEALTHY, layouts=(INBOX, replace(OUTBOX, missing_indexes=("conquiet_outbox_by_due",)))),
            "postgres.indexes",
            Severity.ERROR,
        ),
        (replace(HEALTHY, layouts=(INBOX, replace(OUTBOX, recorded=1))), "database.schema", Severity.WARNING),
        (replace(HEALTHY, overdue={"leger": 90.0}), "postgres.outbox_overdue", Severity.WARNING),
        (replace(HEALTHY, long_transactions=((17, 3_600, True),)), "postgres.long_transactions", Severity.WARNING),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_fault_is_found_alone(facts: PostgresFacts, check: str, severity: Severity) -> None:
    (found,) = run_checks(CHECKS, facts)

    assert (found.check, found.severity) == (check, severity)
    assert found.fix
