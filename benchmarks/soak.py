"""Does anything grow? Millions of messages through one stream beside a slow second group, with default retention.

    python benchmarks/soak.py --minutes 20 --messages 5000000 --svg docs/img/soak.svg

A worker (an ``App``) runs from the beginning to the end, a second one is replaced every ``--deploy-s`` seconds, and
another consumer group reads everything, slower. Up to 100 messages in a second have an inbox row in a SQLite file,
which is deleted after 20 seconds. Every second the sizes are taken: entries of the stream, memory of Redis, memory,
descriptors and threads of the first worker, consumer names, inbox rows. Every ``--rest-every-s`` seconds nothing is
sent for ``--rest-s``: after a quiet time the stream is looked after less often, until messages come again. Exit code 1
if the stream was longer than promised (what is in flight and one second of traffic), if one of the sizes grew from the
first third of the run to the last, or if the second group missed an entry. A run of less than two minutes (``--quick``)
does not tell whether anything grows.
"""

import argparse
import contextlib
import itertools
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import redis
from sqlalchemy.orm import Session

from conquiet import App, AppSettings, SyncEmitter
from conquiet.processor import NewMessage
from conquiet.redis_transport.liveness import registry_key
from conquiet.testing import RedisServer, wait_until
from conquiet.transactional import DatabaseRetention

STREAM, GROUP, SLOW = "soak", "soak", "audit"
CHUNK = 500
MOST_AHEAD = 20_000
BOOKED_PER_S = 100
MOST_BOOKED = CHUNK // 50


@dataclass(frozen=True, slots=True)
class Sample:
    """The sizes at one moment."""

    at_s: float
    done: int
    in_flight: int
    stream: int
    redis_mb: float
    rss_mb: float
    descriptors: int
    threads: int
    names: int
    inbox_rows: int


def make_app(redis_url: str, database: str) -> App:
    """The worker: one event without a session, one with an inbox row."""
    retention = DatabaseRetention(inbox_s=20.0, interval_s=1.0, share=0.05)
    app = App(STREAM, redis=redis_url, database=f"sqlite:///{database}", concurrency=50,
              settings=AppSettings(retention=retention))  # fmt: skip

    @app.handler("order")
    async def order(payload: dict[str, Any]) -> None:
        pass

    @app.handler("booked", concurrency=1)  # SQLite has one writer
    def booked(payload: dict[str, Any], session: Session) -> None:
        pass

    return app


def work(redis_url: str, database: str) -> None:
    make_app(redis_url, database).main()


class SlowGroup(threading.Thread):
    """Reads everything as another program would, and checks that each entry comes once and in order."""

    def __init__(self, redis_url: str) -> None:
        super().__init__(daemon=True)
        self._client: Any = redis.Redis.from_url(redis_url, protocol=2)
        self.read = 0
        self.wrong = 0
        self.over = threading.Event()

    def run(self) -> None:
        last = (0, 0)
        while not self.over.is_set():
            for _, entries in self._client.xreadgroup(SLOW, "one", {STREAM: ">"}, count=400, block=200):
                ids = [entry_id for entry_id, _ in entries]
                for one in ids:
                    milliseconds, _, number = one.decode().partition("-")
                    at = (int(milliseconds), int(number))
                    self.wrong += at <= last
                    last = at
                self._client.xack(STREAM, SLOW, *ids)
                self.read += len(ids)


class Sampler:
    """Takes the sizes."""

    def __init__(self, client: Any, database: str, began: float) -> None:
        self._client = client
        self._database = database
        self._began = began

    def take(self, pid: int) -> Sample:
        # One transaction: the length and what is in flight are those of one moment.
        with self._client.pipeline(transaction=True) as pipe:
            pipe.xinfo_groups(STREAM)
            pipe.xlen(STREAM)
            groups, length = pipe.execute()
        undone = max(int(row["pending"]) + int(row["lag"] or 0) for row in groups)
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        with sqlite3.connect(self._database, timeout=30) as connection:
            (rows,) = connection.execute("SELECT COUNT(*) FROM conquiet_inbox").fetchone()
        return Sample(
            at_s=round(time.monotonic() - self._began, 1),
            done=min(int(row["entries-read"] or 0) - int(row["pending"]) for row in groups),
            in_flight=undone,
            stream=int(length),
            redis_mb=round(self._client.info("memory")["used_memory"] / 1e6, 1),
            rss_mb=round(int(status["VmRSS"].split()[0]) / 1e3, 1),
            descriptors=sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
            threads=int(status["Threads"]),
            names=len(self._client.xinfo_consumers(STREAM, GROUP)),
            inbox_rows=int(rows),
        )


GROWTH = {
    "redis_mb": (1.2, 1.0),
    "rss_mb": (1.03, 1.0),
    "descriptors": (1.0, 1),
    "threads": (1.0, 1),
    "names": (1.0, 0),
    "inbox_rows": (1.25, 200),
}
"""How far the median of the last third may be above that of the first: a factor, and a constant."""

WARM_UP_S = 30.0


def medians(samples: list[Sample]) -> dict[str, tuple[float, float]]:
    """Return the median of each size in the first and in the last third of a run, its start and its end left out."""
    during = [one for one in samples[:-1] if one.at_s >= WARM_UP_S] or samples
    third = max(1, len(during) // 3)
    return {
        name: (
            statistics.median(getattr(one, name) for one in during[:third]),
            statistics.median(getattr(one, name) for one in during[-third:]),
        )
        for name in GROWTH
    }


def is_long(samples: list[Sample]) -> bool:
    """Return whether the run shows growth: in a shorter one everything grows, from nothing to its usual size."""
    return samples[-1].at_s >= 4 * WARM_UP_S


def grown(samples: list[Sample]) -> list[str]:
    """Return the sizes that grew; none for a run that is too short to tell."""
    found = medians(samples)
    return [
        name
        for name, (factor, more) in GROWTH.items()
        if is_long(samples) and found[name][1] > found[name][0] * factor + more
    ]


class Workers:
    """One worker that stays, and one that is replaced."""

    def __init__(self, redis_url: str, database: str, log: Path, deploy_s: float) -> None:
        self._words = [sys.executable, __file__, "--worker", redis_url, database]
        self._log = log.open("w")
        self._deploy_s = deploy_s
        self.first = self._start()
        self._second = self._start()
        self._deployed = time.monotonic()
        self.deploys = 0

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._words, stderr=self._log)

    def deploy(self) -> None:
        if time.monotonic() - self._deployed < self._deploy_s:
            return
        self._deployed = time.monotonic()
        self.deploys += 1
        new = self._start()
        self._second.terminate()
        self._second.wait(60)
        self._second = new

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        for one in (self.first, self._second):
            one.terminate()
        for one in (self.first, self._second):
            one.wait(60)
        self._log.close()


def soak(
    options: argparse.Namespace, folder: Path, redis_url: str, stack: contextlib.ExitStack
) -> tuple[list[Sample], bool]:
    database = str(folder / "soak.db")
    make_app(redis_url, database).create_tables()
    client: Any = redis.Redis.from_url(redis_url, decode_responses=True, protocol=2)
    client.xgroup_create(STREAM, SLOW, "0", mkstream=True)
    client.xgroup_create(STREAM, GROUP, "0")
    began = time.monotonic()
    slow = SlowGroup(redis_url)
    slow.start()
    workers = stack.enter_context(Workers(redis_url, database, folder / "log", options.deploy_s))
    sampler, samples = Sampler(client, database, began), list[Sample]()
    # Before Redis 7.2 a consumer is not created by a read that finds nothing.
    wait_until(lambda: client.scard(registry_key(STREAM, GROUP)) == 2, timeout_s=120)
    emitted, booked, next_at, booked_at = 0, 0, began, began
    rests = 0
    with SyncEmitter(redis.Redis.from_url(redis_url), STREAM) as emitter:
        while emitted < options.messages and time.monotonic() - began < options.minutes * 60:
            if time.monotonic() >= next_at:
                next_at = time.monotonic() + 1.0
                samples.append(sampler.take(workers.first.pid))
                workers.deploy()
            rested_s = time.monotonic() - began - (rests + 1) * options.rest_every_s
            if 0 <= rested_s < options.rest_s:
                time.sleep(0.01)
                continue
            rests += rested_s >= 0
            if emitted - slow.read > MOST_AHEAD or (samples and emitted - samples[-1].done > 4 * MOST_AHEAD):
                time.sleep(0.01)
                continue
            # By the time and not by the number: the inbox has as many rows on a free machine as on a busy one. What a
            # busy one has missed is not made up for: a line of these messages would hold up all others.
            due = min(MOST_BOOKED, int((time.monotonic() - booked_at) * BOOKED_PER_S))
            booked_at = time.monotonic() if due else booked_at
            numbers = range(emitted, emitted + CHUNK)
            emitter.emit_many([NewMessage("booked" if n < emitted + due else "order", {"n": n}) for n in numbers])
            emitted += CHUNK
            booked += due
        wait_until(lambda: sampler.take(workers.first.pid).in_flight == 0, timeout_s=300)
        wait_until(lambda: client.xlen(STREAM) == 1, timeout_s=60)
    samples.append(sampler.take(workers.first.pid))
    whole = [one for one in itertools.pairwise(samples) if one[1].at_s - one[0].at_s >= 0.5]
    busiest = max((after.done - before.done) / (after.at_s - before.at_s) for before, after in whole)
    entries = int(client.xinfo_stream(STREAM)["entries-added"])  # a worker that stops returns what it has not begun
    longest = max(one.stream - one.in_flight for one in samples)
    workers.stop()
    names = len(client.xinfo_consumers(STREAM, GROUP))
    slow.over.set()
    slow.join(10)
    dead = client.xlen(f"{{{STREAM}}}:dead")
    ok = (
        slow.read == entries == samples[-1].done >= emitted
        and not slow.wrong
        and not dead
        and names == 0
        and longest <= busiest
        and not grown(samples)
    )
    print(json.dumps({
        "messages": emitted, "of_these_with_an_inbox_row": booked, "entries": entries, "slow_group": slow.read,
        "seconds": samples[-1].at_s, "deploys": workers.deploys, "rests": rests,
        "twice_or_out_of_order": slow.wrong, "dead": dead, "names_at_the_end": names, "busiest_second": round(busiest),
        "done_and_still_there_at_most": longest, "ok": ok, "load": os.getloadavg()[0],
        "longest_stream": max(one.stream for one in samples), "most_names": max(one.names for one in samples),
        "grown": grown(samples) if is_long(samples) else "too short to tell",
        "medians_of_the_first_and_the_last_third": medians(samples),
        "after_a_minute": asdict(next((one for one in samples if one.at_s >= 60), samples[0])),
        "at_the_end": asdict(samples[-2]),
    }, indent=1))  # fmt: skip
    return samples, ok


PANELS = (
    ("stream", "entries in the stream"),
    ("in_flight", "of these in flight in the slower group"),
    ("redis_mb", "memory of Redis, MB"),
    ("rss_mb", "memory of the worker, MB"),
    ("descriptors", "open descriptors of the worker"),
    ("threads", "threads of the worker"),
    ("names", "consumer names in the group"),
    ("inbox_rows", "inbox rows"),
)


def draw(samples: list[Sample], messages: int) -> str:
    """Return an SVG with one small chart for each size."""
    wide, high, left, gap = 360, 90, 60, 40
    end = samples[-1].at_s
    parts: list[str] = []
    for place, (name, title) in enumerate(PANELS):
        x, y = left + place % 2 * (wide + left), 30 + place // 2 * (high + gap)
        values = [float(getattr(one, name)) for one in samples]
        top = max(values) or 1.0
        points = " ".join(
            f"{x + wide * one.at_s / end:.1f},{y + high - high * value / top:.1f}"
            for one, value in zip(samples, values, strict=True)
        )
        parts += [
            f'<text x="{x}" y="{y - 6}">{title}</text>',
            f'<text x="{x - 6}" y="{y + 8}" text-anchor="end">{top:,.0f}</text>',
            f'<text x="{x - 6}" y="{y + high}" text-anchor="end">0</text>',
            f'<path d="M{x} {y}V{y + high}H{x + wide}" class="axis"/>',
            f'<polyline points="{points}"/>',
        ]
    bottom = 30 + 4 * (high + gap)
    parts.append(f'<text x="{left}" y="{bottom}">{messages:,} messages in {end:,.0f} s, from left to right</text>')
    style = "text{font:11px sans-serif;fill:#555}.axis{stroke:#999;fill:none}polyline{stroke:#0a7;fill:none}"
    size = f'viewBox="0 0 {2 * (wide + left) + 20} {bottom + 12}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>{"".join(parts)}</svg>\n'


def main() -> int:
    parser = argparse.ArgumentParser(description="Does anything grow over millions of messages?")
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--deploy-s", type=float, default=30.0, help="the second worker is replaced so often")
    parser.add_argument("--rest-every-s", type=float, default=90.0, help="nothing is sent so often")
    parser.add_argument("--rest-s", type=float, default=15.0, help="for so long")
    parser.add_argument("--svg", type=Path, help="draw the sizes into this file")
    parser.add_argument("--quick", action="store_true", help="200,000 messages, one minute at most")
    parser.add_argument("--worker", nargs=2, metavar=("REDIS", "DATABASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker)
        return 0
    if options.quick:
        options.messages, options.minutes = 200_000, 1.0
    # In memory where there is such a folder: SQLite has one writer, and a busy disk must not set the pace.
    memory = Path("/dev/shm")
    place = str(memory) if memory.is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as folder, RedisServer() as server, contextlib.ExitStack() as stack:
        samples, ok = soak(options, Path(folder), server.url, stack)
        if not ok:
            print((Path(folder) / "log").read_text()[-3_000:], file=sys.stderr)
    if options.svg:
        options.svg.write_text(draw(samples, samples[-1].done))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
