"""One object from the first handler to production: typed handlers, resources, transactional emit.

App            handlers, schedules, queues and their servers     application.py, assembly.py, registry.py
Emit           emit from a handler, in its transaction           emission.py
AppSettings    everything else that can be set                   settings.py
TestApp        the same app in memory, with a test clock         testing.py
"""

from typing import TYPE_CHECKING

from conquiet.core.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from conquiet.app.application import App
    from conquiet.app.emission import Emit, SyncEmit
    from conquiet.app.settings import AppSettings
    from conquiet.app.testing import TestApp

__all__ = ["App", "AppSettings", "Emit", "SyncEmit", "TestApp"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        ".application": ("App",),
        ".emission": ("Emit", "SyncEmit"),
        ".settings": ("AppSettings",),
        ".testing": ("TestApp",),
    },
)
