"""Write docs/metrics.md: every metric with its type, labels and meaning, from the registry.

python scripts/metrics_docs.py            write docs/metrics.md
python scripts/metrics_docs.py --check    exit with 1 if docs/metrics.md is out of date
"""

import sys
from pathlib import Path
from typing import Any

import generated
from prometheus_client import Counter, Gauge, Histogram

from conquiet.metrics import registry

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"

_HEAD = """# Metrics

Written by `make api` from `conquiet.metrics.registry`; a test fails if this page is out of date. What to do
with them: dashboards and alerts in `deploy/`, and [observability](observability.md).

`conquiet worker --metrics-port 9090` serves the metrics of all its processes together. In a program of your
own they are in `prometheus_client.REGISTRY`.

Label values come from configuration (a stream, a group, a table, a target) and never from a message, except
`event` of handlers that are registered. The gauges `conquiet_stream_…` are set by one host at a time, which
holds a lease in Redis; on every other host they are NaN or absent. Aggregate them with `max by (stream,
group) (…)`.

Names follow the conventions of Prometheus: a prefix for the library and one for the package, base units,
`_total` for counters, `_seconds` for times. Names that a specification fixes stay as they are.
"""

_PACKAGES = {
    "db": "Database writes",
    "queue": "Queue: one stream, one message at a time",
    "stream": "Backlog of streams",
    "runtime": "Runtime: the asynchronous engine",
    "processor": "Processor",
    "inbox": "Inbox",
    "lease": "Lease check before COMMIT",
    "outbox": "Outbox and relay",
    "purge": "Purging of old rows",
    "server": "Outages of servers",
    "rabbit": "RabbitMQ",
    "scheduler": "Scheduler",
}


def metrics() -> list[Any]:
    """Return the metrics in the order of their declaration."""
    found = [one for one in vars(registry).values() if isinstance(one, Counter | Gauge | Histogram)]
    return list(dict.fromkeys(found))


def name_of(metric: Any) -> str:
    """Return the name under which Prometheus sees it."""
    return f"{metric._name}_total" if isinstance(metric, Counter) else str(metric._name)  # noqa: SLF001


def page() -> str:
    """Return the text of the page."""
    sections: dict[str, list[Any]] = {}
    for metric in metrics():
        package = name_of(metric).split("_")[1]
        sections.setdefault(package, []).append(metric)
    parts = [_HEAD]
    for package, those in sections.items():
        rows = [
            f"| `{name_of(one)}` | {one._type} | {', '.join(f'`{label}`' for label in one._labelnames) or '-'} "  # noqa: SLF001
            f"| {one._documentation} |"  # noqa: SLF001
            for one in those
        ]
        title = _PACKAGES.get(package, package)
        parts.append(
            f"## {title}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(generated.main(__doc__, lambda: {PAGE: page()}))
