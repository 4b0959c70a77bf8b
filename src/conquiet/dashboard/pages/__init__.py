"""One module per page, with its values and actions."""

from typing import Final

from conquiet.dashboard.actions import ActionRoute
from conquiet.dashboard.pages import (
    audit,
    database,
    dead,
    jobs,
    overview,
    rabbit,
    runs,
    schedules,
    stream,
    workers,
)
from conquiet.dashboard.views import Page

_MODULES: Final = (overview, stream, jobs, dead, schedules, workers, database, rabbit, runs, audit)

PAGES: Final[tuple[Page, ...]] = tuple(page for module in _MODULES for page in module.PAGES)
ACTIONS: Final[tuple[ActionRoute, ...]] = tuple(
    action for module in _MODULES for action in getattr(module, "ACTIONS", ())
)
