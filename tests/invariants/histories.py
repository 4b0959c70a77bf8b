"""The history of one storm: its header, its records, its judgement, and its line in the ledger.

    history = new_history("engines killed", Row("runtime.Consumer", "none", "one Redis"), seed=2, promise={…})
    history.record("enqueue", range=[0, 4_000])
    …
    history.record("drained")
    assert history.judge()["examples"] == {}

Processes that a storm starts get ``history.folder`` and write with their own ``Recorder``. At the end the
files are merged and judged by scripts/check_history.py; an anomaly fails the test. With ``CONQUIET_LEDGER`` set to a
folder (``make torture``) the judgement is appended there, and the history is kept.
"""

import contextlib
import hashlib
import json
import lzma
import os
import platform
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import check_history
import history_records
from tests.invariants.recorder import Recorder, merge

ROOT = Path(__file__).parents[2]
TORTURE = os.environ.get("CONQUIET_TORTURE") == "1"
LARGEST_KEPT = 150_000
"""Bytes of a compressed history that is committed. Of a larger one the ledger has the digest."""


def seed_or(default: int) -> int:
    """Return the seed that ``make torture`` sets, or the usual one."""
    return int(os.environ.get("CONQUIET_SEED", default))


@dataclass(frozen=True, slots=True)
class Row:
    """The row of a storm in the published table."""

    engine: str
    database: str
    topology: str


@dataclass(slots=True)
class History:
    """The result of one storm."""

    storm: str
    row: Row
    seed: int
    folder: Path
    promise: Mapping[str, Any]
    test: str = ""
    servers: Sequence[Mapping[str, Any]] = ()
    recovery_s: float = 120.0
    claim_idle_s: float | None = None
    points: Mapping[str, int] = field(default_factory=dict)
    started_s: float = field(default_factory=time.monotonic)
    record: Recorder = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.record = Recorder(self.folder)
        self.record("phase", name="faults")

    def kill(self, process: int, point: str = "") -> None:
        """Note that a process is about to be killed."""
        self.record("fault", kind="kill -9", target=process, point=point)

    def stop(self, process: int, point: str = "") -> None:
        """Note that a process is about to be stopped (SIGSTOP)."""
        self.record("fault", kind="SIGSTOP", target=process, point=point)

    def resume(self, process: int) -> None:
        """Record that a stopped process is about to continue (SIGCONT)."""
        self.record("resume", target=process)

    @contextlib.contextmanager
    def outage(self, kind: str, *, charges: bool = False, loses_s: float | None = None) -> Iterator[None]:
        """Note a fault of a server, from now until the block is left. No attempt may be charged for it.

        ``loses_s``: how long before it a message may have been sent that only the lost server had.
        """
        began = time.monotonic()
        yield
        facts = {} if loses_s is None else {"loses_s": loses_s}
        until = round(time.monotonic() + 1.0, 6)
        self.record("fault", kind=kind, scope="server", until=until, charges=charges, began=began, **facts)

    def recovery(self) -> None:
        """Note that no fault is injected from now on: everything has to drain in time."""
        self.record("phase", name="recovery")

    def alive(self) -> list[int]:
        """Return the processes that have written here and still run, without this one: they leak at the end."""
        found = [int(path.stem) for path in self.folder.glob("*.jsonl")]
        return sorted(one for one in found if one != os.getpid() and state_of(one) not in {"", "Z"})

    def leaks(self, engine: Any = None, *, helpers: Collection[int] = (), within_s: float = 30.0) -> dict[str, Any]:
        """Return processes and connections to the engine's database that have not ended in time, for ``leaked``.

        ``helpers``: processes of the storm that still have to run, such as the parent of its workers.
        """
        deadline = time.monotonic() + within_s
        while True:
            found: dict[str, Any] = {"processes": [one for one in self.alive() if one not in helpers]}
            if engine is not None:
                found["database connections"] = open_connections(engine)
            if not any(found.values()) or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    # ------------------------------------------------------------------ the end
    def lines(self) -> list[dict[str, Any]]:
        """Return the whole history: the header, then all records with times since the beginning."""
        header: dict[str, Any] = {
            "op": "header",
            "v": history_records.VERSION,
            "storm": self.storm,
            "row": asdict(self.row),
            "test": self.test,
            "seed": self.seed,
            "scale": "full" if TORTURE else "small",
            "commit": _commit(),
            "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "machine": machine(),
            "servers": list(self.servers),
            "promise": dict(self.promise),
            "recovery_s": self.recovery_s,
            "points": dict(self.points),
        }
        if self.claim_idle_s is not None:
            header["claim_idle_s"] = self.claim_idle_s
        found = merge(self.folder)
        for line in found:
            for name in ("t", "until", "began", "since", "link"):
                if name in line:
                    line[name] = round(line[name] - self.started_s, 6)
            if "began" in line:
                line["t"] = line.pop("began")
        return [header, *sorted(found, key=lambda line: float(line["t"]))]

    def judge(self, *, publish: bool = True) -> dict[str, Any]:
        """Close the history and return its judgement. One with a planted bug is not published."""
        self.record("end")
        self.record.close()
        lines = self.lines()
        text = "".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in lines)
        summary = check_history.judge(history_records.parse(text.splitlines()))
        if publish and (ledger := os.environ.get("CONQUIET_LEDGER")):
            self._publish(Path(ledger), lines[0], summary, text.encode())
        return summary

    def _publish(self, ledger: Path, header: dict[str, Any], summary: dict[str, Any], text: bytes) -> None:
        name = self.storm.replace(" ", "-").replace(",", "")
        histories = ledger / "histories"
        histories.mkdir(parents=True, exist_ok=True)
        packed = lzma.compress(text, preset=6)
        file = histories / f"{name}.jsonl.xz"
        is_kept = len(packed) <= LARGEST_KEPT
        if is_kept:
            file.write_bytes(packed)
        else:
            file.unlink(missing_ok=True)
        facts = {
            key: header[key] for key in ("row", "test", "seed", "scale", "commit", "started", "machine", "servers")
        }
        line = (
            summary
            | facts
            | {
                "seconds": round(time.monotonic() - self.started_s, 1),
                "sha256": hashlib.sha256(text).hexdigest(),
                "history": file.name if is_kept else None,
            }
        )
        with (ledger / f"{name}.jsonl").open("a", encoding="utf-8") as book:
            book.write(json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n")


def state_of(process: int) -> str:
    """Return the letter by which the kernel calls the state of a process: T is stopped, Z dead; "" if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    return ""


def _commit() -> str:
    if given := os.environ.get("CONQUIET_COMMIT"):
        return given
    found = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def machine() -> dict[str, Any]:
    """Return the class of this machine, without its name."""
    return {
        "cpus": os.cpu_count(),
        "system": platform.system(),
        "arch": platform.machine(),
        "python": platform.python_version(),
    }


def open_connections(engine: Any) -> int:
    """Return how many connections others have to the database of an engine."""
    from sqlalchemy import text

    mysql = "information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
    postgres = (
        "pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )
    where = mysql if engine.dialect.name == "mysql" else postgres
    with engine.connect() as connection:
        return int(connection.execute(text(f"SELECT COUNT(*) FROM {where}")).scalar_one())


# ------------------------------------------------------------------ what the servers are and keep
def redis_facts(client: Any) -> dict[str, Any]:
    """Return version and durability of a Redis server."""
    info = client.info("server")
    settings = {name: client.config_get(name).get(name) for name in ("appendonly", "appendfsync", "save")}
    return {"name": "Redis", "version": str(info["redis_version"]), "durability": settings}


def database_facts(engine: Any) -> dict[str, Any]:
    """Return version and durability of the database behind a SQLAlchemy engine."""
    from sqlalchemy import text

    names = ("fsync", "synchronous_commit", "full_page_writes")
    if engine.dialect.name == "mysql":
        names = ("innodb_flush_log_at_trx_commit", "innodb_doublewrite", "sync_binlog")
    with engine.connect() as connection:
        version = str(connection.execute(text("SELECT VERSION()")).scalar_one())
        show = "SHOW VARIABLES LIKE '{}'" if engine.dialect.name == "mysql" else "SHOW {}"
        settings = {name: str(connection.execute(text(show.format(name))).one()[-1]) for name in names}
    name = "PostgreSQL" if engine.dialect.name == "postgresql" else "MariaDB" if "Maria" in version else "MySQL"
    return {"name": name, "version": version.split(" (", maxsplit=1)[0][:60], "durability": settings}


def rabbit_facts(api: Any, *, queue: str) -> dict[str, Any]:
    """Return version of a RabbitMQ broker, and how its messages are kept."""
    overview = api("GET", "/api/overview")
    return {
        "name": "RabbitMQ",
        "version": str(overview["rabbitmq_version"]),
        "durability": {"queue": queue, "delivery_mode": "2"},
    }
