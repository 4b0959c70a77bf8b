"""What does a purge of old inbox rows cost the inserts beside it?

    python benchmarks/purge.py --rows 10000000 --database mariadb

The database is private and syncs its log at every commit. One process inserts inbox rows, one transaction each. A
second process runs a ``Purger`` with a constant share of the time, in every other window: windows with and without a
purge alternate, so that other work of the machine meets both alike; the start of each is left out, because a purger
that starts connects. The first rows are 60 days old; all of them may go. Exit code 1 if p99 during the purge is more
than 10 % above p99 without it.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import IO

from sqlalchemy import Engine, create_engine, text

from conquiet.db.session import DbSession
from conquiet.testing.discovery import MySQLFlavour
from conquiet.testing.mysql import MySQLServer
from conquiet.testing.postgres import PostgresServer
from conquiet.transactional import DatabaseRetention, Inbox, InboxKey, Purger, create_tables

STEP = 250_000
SETTLE_S = 0.5

FILL = {
    "mariadb": """
        INSERT INTO conquiet_inbox (source, consumer_group, message_id, handled_at)
        SELECT 'old', 'g', LPAD(seq + :first, 12, '0'),
               UTC_TIMESTAMP(6) - INTERVAL 60 DAY + INTERVAL (seq + :first) * 1000 MICROSECOND
        FROM seq_1_to_{step}""",
    "postgresql": """
        INSERT INTO conquiet_inbox (source, consumer_group, message_id, handled_at)
        SELECT 'old'::bytea, 'g'::bytea, lpad((n + :first)::text, 12, '0')::bytea,
               {now} - INTERVAL '60 days' + (n + :first) * INTERVAL '1 millisecond'
        FROM generate_series(1, {step}) AS n""",
}


@contextlib.contextmanager
def database(kind: str) -> Iterator[str]:
    """Start a server with durable commits and a cache that is smaller than the table; yield its URL."""
    if kind == "mariadb":
        sizes = ["--innodb-buffer-pool-size=256M", "--innodb-log-file-size=256M"]
        options = ["--innodb-flush-log-at-trx-commit=1", *sizes]
        with MySQLServer(flavour=MySQLFlavour.MARIADB, extra_args=options) as server:
            yield server.url
    else:
        settings = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "max_wal_size": "4GB"}
        with PostgresServer(settings=settings) as postgres:
            yield postgres.url


def fill(engine: Engine, kind: str, rows: int) -> None:
    """Write old rows inside the server."""
    now = ""
    with engine.connect() as connection:
        if kind == "postgresql":
            query = "SELECT data_type FROM information_schema.columns WHERE column_name = 'handled_at'"
            zoned = "without" not in str(connection.scalar(text(query)))
            now = "now()" if zoned else "now() AT TIME ZONE 'UTC'"
    for first in range(0, rows, STEP):
        statement = text(FILL[kind].format(step=min(STEP, rows - first), now=now))
        with engine.begin() as connection:
            connection.execute(statement, {"first": first})


def old_rows(engine: Engine) -> int:
    """Return how many of the old rows are left."""
    with engine.connect() as connection:
        source = "'old'" if engine.dialect.name != "postgresql" else "'old'::bytea"
        return int(connection.scalar(text(f"SELECT COUNT(*) FROM conquiet_inbox WHERE source = {source}")) or 0)


def purge_on_request(url: str, share: float, batch: int) -> None:
    """Purge from a line of the standard input to the next one, until its end."""
    engine = create_engine(url)
    lines = sys.stdin
    while lines.readline():
        keep = DatabaseRetention(interval_s=0.01, share=share, max_share=share, batch=batch)
        with Purger(engine, inbox=Inbox(), retention=keep):
            print("purging", flush=True)
            lines.readline()
        print("pausing", flush=True)


class PurgingProcess:
    """A process that purges while it is enabled."""

    def __init__(self, options: argparse.Namespace, url: str) -> None:
        words = [sys.executable, __file__, "--share", str(options.share), "--batch", str(options.batch)]
        self._process = subprocess.Popen(
            [*words, "--purge", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to: IO[str] = self._process.stdin
        self._from: IO[str] = self._process.stdout

    def turn(self) -> None:
        """Begin, or end."""
        self._to.write("\n")
        self._to.flush()
        assert self._from.readline()

    def close(self) -> None:
        """End the process."""
        self._to.close()
        self._process.wait(60)


def insert_for(engine: Engine, seconds: float, name: str) -> list[float]:
    """Insert inbox rows, one transaction each, for this time; return the durations in ms."""
    inbox, took = Inbox(), list[float]()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        with DbSession(engine) as session:
            inbox.record(session, InboxKey("new", "g", f"{name}-{len(took):09d}"))
        took.append((time.perf_counter() - began) * 1_000)
    return took


def percentiles(took: list[float]) -> dict[str, float]:
    """Return three percentiles in ms."""
    cuts = statistics.quantiles(took, n=1_000)
    return {"n": len(took), "p50": round(cuts[499], 2), "p99": round(cuts[989], 2), "p99.9": round(cuts[998], 2)}


def p99(took: list[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(took, n=100)[98]


def ratio_by_windows(without: list[list[float]], beside: list[list[float]]) -> tuple[float, float]:
    """Return the range that holds 90 % of the ratios of p99 over resampled windows."""
    chosen, places = list[float](), range(len(without))
    for _ in range(400):
        some = random.choices(places, k=len(without))
        both = [[one for place in some for one in windows[place]] for windows in (without, beside)]
        chosen.append(p99(both[1]) / p99(both[0]))
    cuts = statistics.quantiles(chosen, n=20)
    return round(cuts[0], 3), round(cuts[-1], 3)


def measure(options: argparse.Namespace) -> int:
    with database(options.database) as url:
        engine = create_engine(url)
        create_tables(engine)
        began = time.monotonic()
        fill(engine, options.database, options.rows)
        filled_s, before = time.monotonic() - began, old_rows(engine)
        assert before == options.rows
        purging = PurgingProcess(options, url)
        without, beside, purged_s = list[list[float]](), list[list[float]](), 0.0
        insert_for(engine, options.window_s, "warm-up")
        try:
            until = time.monotonic() + options.minutes * 60
            while time.monotonic() < until and not (len(beside) % 4 == 0 and beside and old_rows(engine) == 0):
                turn = len(without)
                insert_for(engine, SETTLE_S, f"c{turn:06d}")
                without.append(insert_for(engine, options.window_s, f"a{turn:06d}"))
                purging.turn()
                began = time.monotonic()
                insert_for(engine, SETTLE_S, f"d{turn:06d}")
                beside.append(insert_for(engine, options.window_s, f"b{turn:06d}"))
                purging.turn()
                purged_s += time.monotonic() - began
        finally:
            purging.close()
        left = old_rows(engine)
        both = [[one for window in windows for one in window] for windows in (without, beside)]
        ratio = p99(both[1]) / p99(both[0])
        print(json.dumps({
            "database": options.database, "old_rows": before, "filled_s": round(filled_s),
            "purged": before - left, "purged_per_s": round((before - left) / purged_s),
            "share": options.share, "batch": options.batch, "windows": len(without),
            "without_ms": percentiles(both[0]), "beside_ms": percentiles(both[1]),
            "p99_ratio": round(ratio, 3), "p99_ratio_90_percent": ratio_by_windows(without, beside),
            "load": [round(one, 1) for one in os.getloadavg()],
        }, indent=1))  # fmt: skip
        engine.dispose()
    return 0 if ratio < 1.1 else 1


def main() -> int:
    retention = DatabaseRetention()
    parser = argparse.ArgumentParser(description="What does a purge of old inbox rows cost the inserts beside it?")
    parser.add_argument("--database", choices=list(FILL), default="mariadb")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--window-s", type=float, default=2.0)
    parser.add_argument("--share", type=float, default=retention.share)
    parser.add_argument("--batch", type=int, default=retention.batch)
    parser.add_argument("--quick", action="store_true", help="50,000 rows and half a minute")
    parser.add_argument("--purge", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.purge:
        purge_on_request(options.purge, options.share, options.batch)
        return 0
    if options.quick:
        options.rows, options.minutes = 50_000, 0.5
    return measure(options)


if __name__ == "__main__":
    sys.exit(main())
