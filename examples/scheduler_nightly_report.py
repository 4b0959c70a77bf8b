"""A nightly report that runs once a night through both clock changes, on any number of hosts.

Run it with ``python examples/scheduler_nightly_report.py``. It uses REDIS_URL, or redis://127.0.0.1:6379/0.
The night is long, so a rehearsal entry makes the same report every second while you watch.
"""

import asyncio
import os
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import redis.asyncio

from conquiet import Cron, Every, JobContext, Processor, ScheduleEntry, Scheduler
from conquiet.scheduler import due_of

STREAM, GROUP, BERLIN = "example:reports", "example-scheduler", ZoneInfo("Europe/Berlin")

NIGHTLY = ScheduleEntry(
    "nightly-report",
    Cron("30 2 * * *", tz="Europe/Berlin"),
    "report.make",
    STREAM,
    {"kind": "sales"},
    catch_up="one",  # after a night without hosts: one report, not none and not three
)
REHEARSAL = ScheduleEntry("rehearsal", Every(1), "report.make", STREAM, {"kind": "rehearsal"})


def show_clock_changes() -> None:
    """Show that 02:30, which is skipped on 29 March 2026 and repeated on 25 October, fires once each."""
    for start in (datetime(2026, 3, 28, tzinfo=BERLIN), datetime(2026, 10, 24, tzinfo=BERLIN)):
        instant: int | None = round(start.timestamp() * 1_000)
        for _ in range(3):
            assert instant is not None
            instant = NIGHTLY.when.next_after(instant)
            assert instant is not None
            print(f"due {datetime.fromtimestamp(instant / 1_000, BERLIN):%d %b %H:%M %Z}")


async def main() -> None:
    show_clock_changes()
    url = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
    made: asyncio.Queue[str] = asyncio.Queue()
    async with redis.asyncio.Redis.from_url(url) as client:
        processor = Processor(client, [STREAM])

        @processor.handler("report.make")
        async def make(ctx: JobContext) -> None:
            # Which night it is about is in the id: right however late this runs, and the same at every retry.
            due = due_of(ctx.id) or datetime.now(UTC)
            made.put_nowait(f"{ctx.data['kind']} report for {due.astimezone(BERLIN):%d %b}, id {ctx.id}")

        hosts = [Scheduler(client, [NIGHTLY, REHEARSAL], group=GROUP) for _ in range(2)]
        async with processor, hosts[0], hosts[1]:
            reports = {await made.get() for _ in range(3)}
            runs = await hosts[0].next_runs(1, name=NIGHTLY.name)
            print(f"next nightly run: {runs[0].at.astimezone(BERLIN):%H:%M} in Berlin")
            for name in (NIGHTLY.name, REHEARSAL.name):
                await hosts[0].remove(name)  # only because this is an example
        await client.delete(STREAM)
    print(f"two hosts, {len(reports)} different reports: no tick was fired twice")


if __name__ == "__main__":
    asyncio.run(main())
