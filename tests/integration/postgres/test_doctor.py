"""The doctor on a real PostgreSQL."""

from sqlalchemy import create_engine, text

from conquiet.db import DbSession
from conquiet.management.doctor.findings import Finding
from conquiet.management.doctor.postgres import examine_postgres
from conquiet.transactional import Outbox, create_tables


def checks(found: list[Finding]) -> set[str]:
    """Return the checks that the private server's settings and the other tests do not cause."""
    return {one.check for one in found} & {"postgres.tables", "postgres.indexes", "postgres.outbox_overdue"}


def test_missing_tables_keys_and_indexes_and_overdue_rows_are_found(postgres_url: str) -> None:
    engine = create_engine(postgres_url)
    bare = examine_postgres(engine)
    create_tables(engine)
    fine = examine_postgres(engine)
    with DbSession(engine) as session:
        Outbox().add(session, "leger", {"n": 1})
        session.execute("UPDATE conquiet_outbox SET created_at = '2026-01-01', due_at = '2026-01-01'")
        session.execute("ALTER TABLE conquiet_inbox DROP CONSTRAINT conquiet_inbox_pkey")
    broken = examine_postgres(engine)
    with engine.begin() as connection:
        connection.execute(text("DROP INDEX conquiet_outbox_by_due"))
    without_index = examine_postgres(engine)
    engine.dispose()

    assert checks(bare) == {"postgres.tables"}
    assert checks(fine) == set()
    assert checks(broken) == {"postgres.indexes", "postgres.outbox_overdue"}
    # Without its index the query for overdue rows would read the whole outbox.
    assert checks(without_index) == {"postgres.indexes"}
