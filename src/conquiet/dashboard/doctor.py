"""Run the doctor in the background, at most every five minutes, while a page is open.

The examination sends several commands for each stream, at most 20 commands per second. With thousands of streams it
takes minutes and adds no noticeable load to the server.
"""

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final

from conquiet.dashboard.servers import DashboardServerError, Servers
from conquiet.errors import ConquietError
from conquiet.management.doctor.redis import examine_redis

if TYPE_CHECKING:
    from conquiet.management.doctor.findings import Finding

_DOCTOR_S: Final = 300.0
_COMMANDS_PER_S: Final = 20.0


class Doctor:
    """The last findings of the doctor, renewed in the background every five minutes while a page is open."""

    def __init__(self) -> None:
        self.findings: list[Finding] | None = None
        self.at_ms = 0.0
        self._started_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def ask(self, servers: "Servers") -> "Doctor":
        """Start an examination if the last one is old."""
        if time.monotonic() - self._started_at > _DOCTOR_S:
            self._started_at = time.monotonic()
            self._task = asyncio.create_task(self._examine(servers))
        return self

    async def _examine(self, servers: "Servers") -> None:
        with contextlib.suppress(ConquietError, DashboardServerError):
            self.findings = await servers.redis_slowly(examine_redis, per_s=_COMMANDS_PER_S)
            self.at_ms = time.time() * 1000
