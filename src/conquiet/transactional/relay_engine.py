"""The relay's own connections to the database of the outbox."""

from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from conquiet.db.dialects import is_mysql, is_postgres
from conquiet.transactional.target_publisher import IDLE_LIMIT_S


def own_engine(engine: Engine) -> Engine:
    """Return an engine with separate connections: same address and credentials, other session settings.

    Settings changed on the caller's connections would stay when these return to the caller's pool.
    """
    if not is_mysql(engine) and not is_postgres(engine):  # SQLite: a memory database lives in one connection
        return engine
    own = Engine(engine.pool.recreate(), engine.dialect, engine.url, hide_parameters=True)
    if is_postgres(engine):

        @event.listens_for(own, "connect")
        def limit_idle_transactions(connection: Any, _: object) -> None:
            with connection.cursor() as cursor:
                cursor.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_LIMIT_S}s'")
            connection.commit()

        # Set for each checkout, and without a round trip: the driver's BEGIN names the level.
        return own.execution_options(isolation_level="READ COMMITTED")

    @event.listens_for(own, "connect")
    def prepare(connection: Any, _: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute(f"SET SESSION wait_timeout = {IDLE_LIMIT_S}")

    return own
