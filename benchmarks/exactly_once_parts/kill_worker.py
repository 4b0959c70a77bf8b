"""A worker of ``exactly_once.py --kill``: batches of 200 until it is killed."""

import asyncio
import json
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import redis.asyncio
from sqlalchemy import create_engine

from conquiet.processor import Processor
from conquiet.runtime import RuntimeSettings
from exactly_once_parts.common import World
from exactly_once_parts.ours import batched


async def main() -> None:
    """Work."""
    given = json.loads(sys.argv[1])
    logging.disable(logging.CRITICAL)
    client = redis.asyncio.Redis.from_url(given["redis"])
    world = World(given["kind"], given["url"], given["redis"], "", create_engine(given["url"]), None)
    runtime = RuntimeSettings(claim_idle_ms=1_000, max_deliveries=1_000)
    processor = Processor(client, [given["stream"]], runtime=runtime)
    batched()(world, processor, lambda _number: None)
    await processor.start()


if __name__ == "__main__":
    asyncio.run(main())
