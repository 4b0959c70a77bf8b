"""Resolve a COMMIT of an ``AsyncEngine`` after its reply was lost: the async form of ``conquiet.db.commit_status``."""

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
    """Query the server until the status is final or the timeout expires. Never raises an error of the database.

    Args:
        engine: The engine of the lost connection.
        transaction: The transaction to resolve.
        timeout_s: Longest wait for the server.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    of = engine.sync_engine
    separate = AsyncEngine(Engine(of.pool.recreate(), of.dialect, of.url, hide_parameters=True))
    try:
        while True:
            waited_s = loop.time() - began
            try:
                async with asyncio.timeout(_CONNECT_LIMIT_S), separate.connect() as connection:
                    found = await connection.run_sync(status_of, transaction, end_backend=waited_s > END_AFTER_S)
            except (SQLAlchemyError, OSError):  # unavailable; TimeoutError is an OSError
                found = None
            if found is not None:
                return found
            if waited_s > timeout_s:
                return CommitStatus.UNKNOWN
            await asyncio.sleep(PAUSE_S)
    finally:
        await separate.dispose()
