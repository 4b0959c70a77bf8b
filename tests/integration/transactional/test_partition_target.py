"""A relay spreads the rows of an outbox over the partitions of a stream: in turn, or by key and in order."""

import json
from pathlib import Path
from typing import Any

import redis.asyncio
from sqlalchemy import create_engine

from conquiet.db.session import DbSession
from conquiet.processor import PartitionedStream
from conquiet.processor.partitions import partition_name, partition_of
from conquiet.transactional import Outbox, OutboxRelay, ToPartitions, create_tables

PARTITIONS = 4


async def test_rows_go_to_all_partitions_in_turn_and_keys_to_theirs(
    redis_url: str, key_prefix: str, tmp_path: Path
) -> None:
    stream = f"{key_prefix}orders"
    engine = create_engine(f"sqlite:///{tmp_path / 'outbox.db'}")
    create_tables(engine)
    client: Any = redis.asyncio.Redis.from_url(redis_url, protocol=2)
    await PartitionedStream(client, stream).grow(PARTITIONS)
    with DbSession(engine) as session:
        Outbox().add_many(session, "orders", [{"n": number} for number in range(3 * PARTITIONS)])
        for number in range(6):
            Outbox().add(session, "orders", {"n": number}, key=f"key-{number % 2}")

    plain: Any = redis.Redis.from_url(redis_url)
    with ToPartitions(plain, stream, "pay") as target, OutboxRelay(engine, {"orders": target}) as relay:
        assert relay.drain().published == 3 * PARTITIONS + 6
    found = [
        [json.loads(fields[b"data"]) for _, fields in await client.xrange(partition_name(stream, index))]
        for index in range(PARTITIONS)
    ]
    plain.close()
    await client.aclose()
    engine.dispose()

    assert [sum("key" not in one for one in those) for those in found] == [3] * PARTITIONS
    for key in ("key-0", "key-1"):
        (place,) = {index for index, those in enumerate(found) if any(one.get("key") == key for one in those)}
        assert place == partition_of(key, PARTITIONS)
