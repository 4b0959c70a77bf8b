"""Workers for test_a_million_effects: large batches with one multi-row statement, dying at a named point of a batch.

Not a test. Forks and reports as ``batch_worker`` does, and uses its points and its main loop.
"""

import json
import os
from collections.abc import Iterable
from typing import Any

import redis.asyncio
from sqlalchemy import create_engine, text
from tests.invariants import batch_worker
from tests.invariants.batch_worker import RECORD, SETTINGS, PointedInbox, at, run
from tests.invariants.recorder import packed

from conquiet.db.session import DbSession
from conquiet.processor import Processor, ProcessorSettings, RetryPolicy
from conquiet.runtime import RuntimeSettings
from conquiet.transactional import for_processor_batch

MARIADB = text(
    "INSERT INTO effects (message) SELECT j.message FROM JSON_TABLE(:rows, '$[*]' COLUMNS (message INT PATH '$')) AS j"
)
POSTGRESQL = text("INSERT INTO effects (message) SELECT * FROM unnest(CAST(:rows AS int[]))")

NUMBERS: dict[str, int] = {}
"""The number of each message, by its id: shorter in the history."""


async def work(name: str, mode: str) -> None:
    is_mysql = SETTINGS["db_url"].startswith("mysql")
    engine = create_engine(SETTINGS["db_url"], pool_pre_ping=True)
    client = redis.asyncio.Redis.from_url(SETTINGS["redis_url"])
    processor = Processor(
        client,
        [SETTINGS["stream"]],
        concurrency=2,
        consumer_id=f"{name}-{os.getpid()}",
        settings=ProcessorSettings(retention=None),
        runtime=RuntimeSettings(claim_idle_ms=1_000, max_deliveries=1_000, max_reconnects=1_000),
    )

    def handle(contexts: list[Any], session: DbSession) -> None:
        session.before_commit(lambda _: at("before-commit"))
        numbers = [ctx.data["n"] for ctx in contexts]
        session.execute(MARIADB if is_mysql else POSTGRESQL, {"rows": json.dumps(numbers) if is_mysql else numbers})
        at("mid-handler")

    made = for_processor_batch(handle, engine=engine, inbox=PointedInbox())

    def committed(contexts: list[Any]) -> Any:
        numbers = [ctx.data["n"] for ctx in contexts]
        NUMBERS.update((ctx.id, ctx.data["n"]) for ctx in contexts)
        RECORD("deliver", ids=packed(numbers))
        try:
            outcomes = made(contexts)
        except BaseException:
            RECORD("release", ids=packed(numbers))  # nothing has happened: the engine runs them again
            raise
        if failed := [n for n, outcome in zip(numbers, outcomes or (), strict=False) if outcome is not None]:
            RECORD("retry", ids=packed(failed))
        at("after-commit")
        return outcomes

    retry = RetryPolicy.fixed(0.2, max_attempts=1_000)
    processor.handler("paid", batch=SETTINGS["batch"], within_s=0.01, retry=retry)(committed)
    await run(processor)


def pack(ids: Iterable[str]) -> list[Any]:
    return packed(NUMBERS[one] for one in ids)


if __name__ == "__main__":
    batch_worker.work = work
    batch_worker.pack = pack
    batch_worker.main()
