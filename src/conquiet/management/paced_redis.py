"""A ``RedisAdmin`` with a rate limit, for long examinations that are not urgent."""

import threading
import time
from typing import Any

from conquiet.core.throttle import Throttle
from conquiet.errors import LifecycleError
from conquiet.management.redis_admin import RedisAdmin
from conquiet.redis_transport.commands import Word
from conquiet.redis_transport.routing import NodeAddress


class PacedRedisAdmin(RedisAdmin):
    """Waits before a command that would exceed the rate. For one thread."""

    _throttle = Throttle(None)
    _closing: threading.Event | None = None

    def limit(self, per_s: float, closing: threading.Event | None = None) -> None:
        """Limit the rate to ``per_s`` commands per second; raise ``LifecycleError`` once ``closing`` is set."""
        self._throttle = Throttle(per_s)
        self._closing = closing

    def call(self, *words: Word, stream: str = "", group: str = "") -> Any:
        """See ``RedisAdmin``."""
        self._wait(1)
        return super().call(*words, stream=stream, group=group)

    def call_each(self, address: NodeAddress | None, *words: Word) -> Any:
        """See ``RedisAdmin``."""
        if address is not None:  # otherwise ``call`` waits
            self._wait(1)
        return super().call_each(address, *words)

    def pipeline(self, commands: list[tuple[Word, ...]], *, stream: str = "", group: str = "") -> list[Any]:
        """See ``RedisAdmin``."""
        if len(commands) > 1:  # otherwise ``call`` waits
            self._wait(len(commands))
        return super().pipeline(commands, stream=stream, group=group)

    def send(self, packed: bytes, replies: int, *, command: str, stream: str) -> list[Any]:
        """See ``RedisAdmin``."""
        self._wait(replies)
        return super().send(packed, replies, command=command, stream=stream)

    def _wait(self, commands: int) -> None:
        wait_s = self._throttle.reserve(commands)
        if self._closing is None:
            time.sleep(wait_s)
        elif self._closing.wait(wait_s):
            raise LifecycleError("the examination was ended: its dashboard closes")
