"""Entries for tests."""

from typing import Any

from conquiet.scheduler.cron import Cron
from conquiet.scheduler.entries import ScheduleEntry


def an_entry(**changes: Any) -> ScheduleEntry:
    settings: dict[str, Any] = {
        "name": "nightly",
        "when": Cron("30 2 * * *", "Europe/Berlin"),
        "event": "report.make",
        "stream": "reports",
        "data": {"kind": "sales"},
    }
    return ScheduleEntry(**settings | changes)
