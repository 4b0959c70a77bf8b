"""Cuts single connections of a process at the server's side: at Redis, MariaDB, MySQL or PostgreSQL.

The server's list of connections names the client's port; the kernel reports which ports belong to a process. A function
returns whether a connection of a living process was ended: only that is a fault.
"""

import contextlib
import random
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

LOCAL_ADDRESS, INODE = 1, 9
"""Columns of /proc/net/tcp."""


def ports_of(process: int) -> set[int]:
    """Return the local TCP ports of a process; none if it is gone."""
    inodes: set[str] = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(str(entry.readlink()))
    found: set[int] = set()
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        columns = line.split()
        if f"socket:[{columns[INODE]}]" in inodes:
            found.add(int(columns[LOCAL_ADDRESS].rpartition(":")[2], 16))
    return found


def cut_at_redis(client: Any, process: int, rng: random.Random) -> bool:
    """End one connection of the process with CLIENT KILL."""
    ports = {str(port) for port in ports_of(process)}
    # The address is empty while the server closes a connection.
    of_process = [row["id"] for row in client.client_list() if row["addr"].rpartition(":")[2] in ports]
    return bool(of_process) and client.client_kill_filter(_id=rng.choice(sorted(of_process))) == 1


def cut_at_database(engine: Any, process: int, rng: random.Random) -> bool:
    """End one connection of the process with KILL or pg_terminate_backend."""
    ports = ports_of(process)
    is_mysql = engine.dialect.name == "mysql"
    listed = (
        "SELECT id, SUBSTRING_INDEX(host, ':', -1) FROM information_schema.processlist WHERE host LIKE '%:%'"
        if is_mysql
        else "SELECT pid, client_port FROM pg_stat_activity WHERE client_port > 0"
    )
    with engine.connect() as connection:
        of_process = sorted(int(row[0]) for row in connection.execute(text(listed)) if int(row[1]) in ports)
        if not of_process:
            return False
        victim = rng.choice(of_process)
        if not is_mysql:
            return bool(connection.execute(text(f"SELECT pg_terminate_backend({victim})")).scalar_one())
        try:
            connection.execute(text(f"KILL {victim}"))
        except SQLAlchemyError:  # it has ended
            return False
        return True
