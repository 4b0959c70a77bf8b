"""One object from the first handler to production: typed handlers, resources, transactional emit.

App            handlers, schedules, queues and their servers     application.py, assembly.py, registry.py
Emit           emit from a handler, in its transaction           emission.py
AppSettings    everything else that can be set                   settings.py
TestApp        the same app in memory, with a test clock         testing.py
"""

from conquiet.core.lazy_exports import lazy_exports, stub_exports

_HOMES = stub_exports(__name__)
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
