"""Who we are inside a consumer group: one name per engine, the same for its whole life.

A name that changes with every read leaves pending entries behind under names nobody will ever
use again. Host and process id are enough to be unique among live processes and let an operator
find the process; a second engine in one process gets a suffix.
"""

import itertools
import os
import re
import socket

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")

# Shared by the whole process. next() on it is atomic under the interpreter lock, and the pid
# that goes with it makes a fork start counting anew.
_counters: dict[int, "itertools.count[int]"] = {}


def stable_consumer_id() -> str:
    """Return ``consumer-{hostname}-{pid}``, then ``…-2``, ``…-3`` for further engines of this process."""
    pid = os.getpid()
    number = next(_counters.setdefault(pid, itertools.count(1)))
    name = f"consumer-{hostname()}-{pid}"
    return name if number == 1 else f"{name}-{number}"


def hostname() -> str:
    """Return this machine's name, safe to use inside keys, names and log lines."""
    return _UNSAFE.sub("_", socket.gethostname()) or "localhost"
