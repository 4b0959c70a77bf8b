"""What became of a COMMIT of an ``AsyncEngine`` whose reply was lost: ``conquiet.db.commit_status``, awaited."""

import asyncio
from typing import Final

from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from conquiet.db.commit_status import END_AFTER_S, PAUSE_S, TIMEOUT_S, CommitStatus, TransactionId, status_of

_CONNECT_LIMIT_S: Final = 10.0


async def resolve_commit_async(
    engine: AsyncEngine, transaction: TransactionId, *, timeout_s: float = TIMEOUT_S
) -> CommitStatus:
    """Ask until the answer is final or the time is up. Never raises an error of the database.

    Args:
        engine: The engine of the lost connection.
        transaction: Which transaction.
        timeout_s: How long to wait for the server.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    of = engine.sync_engine
    probe = AsyncEngine(Engine(of.pool.recreate(), of.dialect, of.url, hide_parameters=True))
    try:
        while True:
            waited_s = loop.time() - began
            try:
                async with asyncio.timeout(_CONNECT_LIMIT_S), probe.connect() as connection:
                    found = await connection.run_sync(status_of, transaction, end_backend=waited_s > END_AFTER_S)
            except (SQLAlchemyError, OSError):  # away, or not accepting connections yet; TimeoutError is an OSError
                found = None
            if found is not None:
                return found
            if waited_s > timeout_s:
                return CommitStatus.UNKNOWN
            await asyncio.sleep(PAUSE_S)
    finally:
        await probe.dispose()
