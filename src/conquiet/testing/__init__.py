"""Real servers for tests, private to a test run, and a proxy that breaks connections on demand.

>>> from conquiet.testing import RedisServer
>>> with RedisServer(aof=True) as server:  # doctest: +SKIP
...     server.kill()
...     server.restart()

``conquiet.testing.pytest_plugin`` has the fixtures; a project turns it on with one line, see docs/testing.md. Names
are imported when first used, so that loading the plugin loads no client library.
"""

from conquiet.core.lazy_exports import lazy_exports, stub_exports

_HOMES = stub_exports(__name__)
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
