"""An e-mail sender: retries while the mail server is down, dead letters for what cannot be sent, and a replay.

Run it with ``python examples/processor_email.py``. It uses REDIS_URL, or redis://127.0.0.1:6379/0.
"""

import asyncio
import os

import redis
import redis.asyncio

from conquiet.processor import (
    DeadFilter,
    Emitted,
    JobContext,
    NewMessage,
    Processor,
    Reject,
    RetryPolicy,
    SyncEmitter,
)

STREAM, GROUP = "example:email", "example-email"


class MailServer:
    """Simulate a mail server: down for the first attempts, and strict about addresses."""

    def __init__(self) -> None:
        self.failures_left = 3
        self.known = {"jane@example.org"}
        self.sent: list[str] = []

    async def send(self, to: str) -> None:
        """Send, or fail as a mail server does."""
        if self.failures_left > 0:
            self.failures_left -= 1
            raise ConnectionError
        if to not in self.known:
            raise Reject("the mail server does not know this address")
        self.sent.append(to)


def build(client: redis.asyncio.Redis, mail: MailServer) -> Processor:
    processor = Processor(client, [STREAM], concurrency=10, group=GROUP)

    @processor.handler(
        "email.send",
        retry=RetryPolicy.exponential(0.05, max_attempts=8, cap_s=60.0),
        timeout_s=10,
    )
    async def send(ctx: JobContext) -> None:
        await mail.send(ctx.data["to"])

    return processor


def from_a_web_view(message_id: str) -> Emitted:
    """Emit without asyncio: the same message, once per id, from any thread."""
    url = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
    with redis.Redis.from_url(url) as client, SyncEmitter(client, STREAM) as emitter:
        return emitter.emit("email.send", {"to": "jane@example.org"}, id=message_id)


async def main() -> None:
    client = redis.asyncio.Redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0"))
    mail = MailServer()
    processor = build(client, mail)
    dead_letters = processor.dead_letters()
    await dead_letters.discard(DeadFilter())  # of an earlier run of this example
    run = os.urandom(4).hex()

    async with processor:
        await processor.emit_many([
            NewMessage("email.send", {"to": "jane@example.org"}, id=f"welcome:jane:{run}"),
            NewMessage("email.send", {"to": "joe@example.org"}, id=f"welcome:joe:{run}"),
        ])  # fmt: skip
        again = await asyncio.to_thread(from_a_web_view, f"welcome:jane:{run}")
        print(f"the same id again: duplicate={again.duplicate}")

        while not (mail.sent and await dead_letters.count()):  # noqa: ASYNC110 - an example may poll
            await asyncio.sleep(0.01)
        print(f"sent after {3 - mail.failures_left} failures of the server: {mail.sent}")
        for cause in await dead_letters.causes():
            dead = await dead_letters.show(cause.example_id)
            assert dead is not None
            print(f"dead: {cause.count} x {cause.event}, {dead.record.reason}: {dead.record.error}")

        mail.known.add("joe@example.org")
        planned = await dead_letters.replay(DeadFilter(event="email.send"), dry_run=True)
        report = await dead_letters.replay(DeadFilter(event="email.send"), rate_per_s=100)
        print(f"replayed {report.replayed} of {planned.matched}")
        while len(mail.sent) < 2:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.01)
        print(f"sent in the end: {sorted(mail.sent)}, dead letters left: {await dead_letters.count()}")
    await client.aclose()


if __name__ == "__main__":
    asyncio.run(main())
