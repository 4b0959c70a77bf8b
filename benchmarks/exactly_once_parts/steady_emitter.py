"""Emits messages at a steady rate, each with the time of its emission. A separate process: see ``latency``."""

import json
import sys
import time

import redis

from conquiet.processor import SyncEmitter


def main() -> None:
    """Emit."""
    given = json.loads(sys.argv[1])
    with (
        redis.Redis.from_url(given["redis"]) as client,
        SyncEmitter(client, given["stream"]) as emitter,
    ):
        began = time.perf_counter()
        for number in range(given["count"]):
            early_s = number / given["rate"] - (time.perf_counter() - began)
            if early_s > 0:
                time.sleep(early_s)
            emitter.emit(given["event"], {"cents": 1, "at": time.time()}, id=f"{given['stream']}-{number}")


if __name__ == "__main__":
    main()
