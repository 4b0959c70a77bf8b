"""Read the size of an engine's connection pool, for comparison with the concurrency of a worker."""

from sqlalchemy.engine import Engine
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import AssertionPool, Pool, QueuePool

from conquiet.core.redaction import printable


def pool_capacity(engine: Engine) -> int | None:
    """Return how many connections the engine's pool lends concurrently; None if there is no limit.

    That is ``pool_size`` plus ``max_overflow`` (15 by default). With a higher concurrency some tasks wait for a
    connection, and fail with ``DatabaseUnavailableError`` after ``pool_timeout`` seconds (30 by default).
    """
    return _capacity(engine.pool)


def database_address(engine: Engine) -> str:
    """Return where the database is: host, port and name, or the file. Never a credential."""
    url = engine.url
    if not url.host:
        return printable(url.database or "")
    return printable(f"{url.host}{'' if url.port is None else f':{url.port}'}/{url.database or ''}")


def separate_engine(engine: Engine) -> Engine:
    """Return an engine with its own connections to the same server, with the same credentials and pool settings."""
    return Engine(engine.pool.recreate(), engine.dialect, engine.url, hide_parameters=True)


def pool_timeout_hint(error: BaseException, pool: Pool | None) -> str | None:
    """Return what to report about a pool without a free connection in time; None for another error."""
    if not isinstance(error, PoolTimeoutError) or not isinstance(pool, QueuePool):
        return None
    capacity = _capacity(pool)
    return (
        f"no connection of the pool was free within {pool.timeout():g} s. The pool lends at most {capacity} "
        f"(pool_size {pool.size()}, max_overflow {pool._max_overflow}), and more tasks than that needed one: "  # noqa: SLF001 - no public name
        "the concurrency is larger than the pool. Call create_engine with pool_size and max_overflow that add up to "
        f"the concurrency at least, or lower the concurrency to {capacity}; nothing was written"
    )


def _capacity(pool: Pool) -> int | None:
    if isinstance(pool, AssertionPool):
        return 1
    if not isinstance(pool, QueuePool):
        return None  # NullPool opens one for each; StaticPool and SingletonThreadPool never let a caller wait
    overflow: int = pool._max_overflow  # noqa: SLF001 - no public name
    return None if overflow < 0 else pool.size() + overflow
