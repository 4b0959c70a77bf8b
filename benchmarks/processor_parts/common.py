"""The clock, the data and the output of a result: the same for every contender."""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

DATA = {"order": 12345, "amount": 19.99, "currency": "EUR"}


class Clock:
    """Times n calls from the first to the last."""

    def __init__(self, n: int, done: Callable[[], Any]) -> None:
        self.n, self.seen, self.done = n, 0, done
        self.began = self.ended = 0.0

    def tick(self) -> None:
        if self.seen == 0:
            self.began = time.perf_counter()
        self.seen += 1
        if self.seen == self.n:
            self.ended = time.perf_counter()
            self.done()

    def report(self, messages: int | None = None) -> None:
        say(rate=(self.n - 1 if messages is None else messages) / (self.ended - self.began))


def say(**facts: float) -> None:
    print(json.dumps(facts), flush=True)


def leave() -> None:
    """End the process immediately: several peers hang, or take seconds, when they are stopped."""
    sys.stdout.flush()
    os._exit(0)


def connect(url: str) -> Any:
    import redis.asyncio

    return redis.asyncio.Redis.from_url(url)
