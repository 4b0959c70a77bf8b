"""Consumer names: one per worker, constant from its start to its end.

A name that changes with every read would leave pending entries under names that are never used again. Host and process
id are unique among live processes and identify the process for an operator. A second worker in one process gets a
suffix.
"""

import itertools
import os
import re
import socket

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")

# Shared by the whole process. next() is atomic under the interpreter lock, and the pid
# in the key makes a forked process start at 1.
_counters: dict[int, "itertools.count[int]"] = {}


def stable_consumer_id() -> str:
    """Return ``consumer-{hostname}-{pid}``, then ``…-2``, ``…-3`` for further workers of this process."""
    pid = os.getpid()
    number = next(_counters.setdefault(pid, itertools.count(1)))
    name = f"consumer-{hostname()}-{pid}"
    return name if number == 1 else f"{name}-{number}"


def hostname() -> str:
    """Return the host name, safe to use in keys, names and log lines."""
    return _UNSAFE.sub("_", socket.gethostname()) or "localhost"
