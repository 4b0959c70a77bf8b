"""Policy above the engine: retries, delays, dead letters, pauses. An ordinary handler to ``runtime``."""

from conquiet.kernel.extras import require_extra

require_extra("redis", "redis", "msgspec")
