"""Plan a Redis Cluster for a rate of messages: masters, partitions, connections and memory, partly simulated.

    python scripts/plan_cluster.py --rate 1000000 --hosts 1000 --server-us 20 --partitions 256

The partitions of one stream fall on masters by the slots of their names. They do not fall evenly, so the busiest master
decides. The simulation places the real names (``orders``, ``{orders:1}``, …) in equal ranges of slots, as a new cluster
has them, for growing numbers of masters, until the busiest one is below ``--full``. ``even`` is the busiest master's
share in an even spread, beside its real one: an operator who moves the slots of partitions gets to 1.

``--server-us`` is the server's CPU time for one message (written, read and acknowledged in batches);
benchmarks/partitions.py measures it. Everything else is a parameter, printed with the result.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass

from conquiet.processor.partitions import partition_name
from conquiet.testing.cluster_slots import SLOTS, key_slot

MOST_MASTERS = 1_000


@dataclass(frozen=True, slots=True)
class Load:
    """What the cluster has to bear.

    Attributes:
        rate: Messages per second.
        hosts: Processes that read all partitions, unless ``read`` says otherwise.
        server_us: Microseconds of a master's CPU for each message.
        entry_bytes: Memory of an entry.
        backlog_s: Seconds of messages that must fit.
        full: Share of one core at which a master counts as full.
        read: Partitions that each host reads.
    """

    rate: int
    hosts: int
    server_us: float
    entry_bytes: int
    backlog_s: float
    full: float
    read: int


def busiest_share(partitions: int, masters: int, stream: str = "orders") -> float:
    """Return the share of all messages that the busiest master has, if each partition has as many as the others."""
    owners = Counter(key_slot(partition_name(stream, index)) * masters // SLOTS for index in range(partitions))
    return max(owners.values()) / partitions


def masters_needed(load: Load, partitions: int) -> int | None:
    """Return the smallest number of masters of which the busiest is not full; None if no number is enough."""
    for masters in range(1, MOST_MASTERS + 1):
        if load.rate * load.server_us / 1e6 * busiest_share(partitions, masters) <= load.full:
            return masters
    return None


def main() -> None:
    """Print the plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=1_000_000)
    parser.add_argument("--hosts", type=int, default=1_000)
    parser.add_argument("--server-us", type=float, default=20.0)
    parser.add_argument("--entry-bytes", type=int, default=500)
    parser.add_argument("--backlog-s", type=float, default=60.0)
    parser.add_argument("--full", type=float, default=0.7)
    parser.add_argument("--partitions", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--read", type=int, default=16, help="partitions that each host reads")
    words = vars(parser.parse_args())
    counts = words.pop("partitions")
    load = Load(**words)
    print(load)
    print(f"{'partitions':>10} {'masters':>8} {'busiest':>8} {'even':>6} {'connections each':>17} {'memory each':>12}")
    for partitions in counts:
        masters = masters_needed(load, partitions)
        if masters is None:
            print(f"{partitions:10} {'none is enough: one partition alone fills a master':>50}")
            continue
        share = busiest_share(partitions, masters)
        # Two for each slot that is read, on its master, and one for each node: see docs/scaling.md.
        connections = load.hosts * (2 * load.read * share + 1)
        memory_gb = load.rate * load.backlog_s * load.entry_bytes * share / 1e9
        print(
            f"{partitions:10} {masters:8} {load.rate * load.server_us / 1e6 * share:8.2f} {1 / masters / share:6.2f} "
            f"{connections:17,.0f} {memory_gb:9.1f} GB"
        )


if __name__ == "__main__":
    main()
