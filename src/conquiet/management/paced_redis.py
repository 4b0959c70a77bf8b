"""A ``RedisAdmin`` with a rate limit, for long examinations that are not urgent."""

import threading
import time

from conquiet.core.throttle import Throttle
from conquiet.errors import LifecycleError
from conquiet.management.redis_admin import RedisAdmin


class PacedRedisAdmin(RedisAdmin):
    """Waits before a command that would exceed the rate. For one thread."""

    _throttle = Throttle(None)
    _closing: threading.Event | None = None

    def limit(self, per_s: float, closing: threading.Event | None = None) -> None:
        """Limit the rate to ``per_s`` commands per second; raise ``LifecycleError`` once ``closing`` is set."""
        self._throttle = Throttle(per_s)
        self._closing = closing

    def _wait(self, commands: int) -> None:
        wait_s = self._throttle.reserve(commands)
        if self._closing is None:
            time.sleep(wait_s)
        elif self._closing.wait(wait_s):
            raise LifecycleError("the examination was ended: its dashboard closes")
