"""A program with the Sentry middleware of docs/observability.md: its only message fails.

It reads its arguments from standard input, because Sentry reports ``sys.argv``. It prints the id of the message as the
first line, and after it the reports that Sentry would send. A separate process, because Sentry patches the libraries
that it finds (SQLAlchemy, redis, threading, logging) and cannot undo that.
"""

import asyncio
import json
import sys
from typing import Any

import redis
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from conquiet.processor import JobContext, Processor
from conquiet.testing import wait_until_async


class Recorder(Transport):
    """Keeps the reports that Sentry would send."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.sent.append(envelope.serialize())


async def main(redis_url: str, stream: str, block: str, canary: str) -> None:
    page: dict[str, Any] = {}
    exec(block, page)
    recorder = Recorder()
    sentry_sdk.init(
        dsn="https://key@127.0.0.1/1",
        transport=recorder,
        include_local_variables=False,
        before_send=page["without_texts"],
    )
    client = redis.Redis.from_url(redis_url)
    processor = Processor(client, [stream])
    processor.add_middleware(page["report_to_sentry"])

    @processor.handler("paid")
    async def handle(ctx: JobContext) -> None:
        mail = ctx.data["mail"]
        raise ValueError(mail)

    async with processor:
        emitted = await processor.emit("paid", {"mail": canary})
        await wait_until_async(lambda: bool(recorder.sent))
    client.close()
    sys.stdout.write(f"{emitted.id}\n{b''.join(recorder.sent).decode()}")


asyncio.run(main(**json.load(sys.stdin)))
