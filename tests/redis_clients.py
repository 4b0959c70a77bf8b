"""Redis clients of the tests, with the replies that they get: RESP2, and nothing decoded.

redis-py types a reply as the union over all its settings, such as ``bytes | str | None``. The fixtures make their
clients with ``protocol=2`` and without ``decode_responses``, so the replies below are exact. At run time the classes
are redis-py's.
"""

from typing import TYPE_CHECKING, Any, Self

import redis
import redis.asyncio

Fields = dict[bytes, bytes]
Entries = list[tuple[bytes, Fields]]

if TYPE_CHECKING:

    class RawRedis(redis.Redis):
        """A synchronous client."""

        @classmethod
        def from_url(cls, url: str, **options: Any) -> Self: ...

        def execute_command(self, *words: Any, **options: Any) -> Any: ...
        def monitor(self) -> redis.client.Monitor: ...
        def xadd(self, *words: Any, **options: Any) -> bytes: ...
        def xclaim(self, *words: Any, **options: Any) -> list[Any]: ...
        def xpending_range(self, *words: Any, **options: Any) -> list[dict[str, Any]]: ...
        def xrange(self, *words: Any, **options: Any) -> Entries: ...  # type: ignore[override] # redis-py: or None
        def xrevrange(self, *words: Any, **options: Any) -> Entries: ...  # type: ignore[override] # redis-py: or None
        def xreadgroup(self, *words: Any, **options: Any) -> list[list[Any]]: ...
        def zrange(self, *words: Any, **options: Any) -> list[Any]: ...

    class RawAsyncRedis(redis.asyncio.Redis):
        """A client of asyncio."""

        @classmethod
        def from_url(cls, *words: Any, **options: Any) -> Self: ...

        async def execute_command(self, *words: Any, **options: Any) -> Any: ...
        async def xadd(self, *words: Any, **options: Any) -> bytes: ...
        async def xclaim(self, *words: Any, **options: Any) -> list[Any]: ...
        async def xpending_range(self, *words: Any, **options: Any) -> list[dict[str, Any]]: ...
        async def xrange(self, *words: Any, **options: Any) -> Entries: ...  # type: ignore[override] # redis-py: or None
        async def xrevrange(self, *words: Any, **options: Any) -> Entries: ...  # type: ignore[override] # redis-py: or None
        async def xreadgroup(self, *words: Any, **options: Any) -> list[list[Any]]: ...
        async def zrange(self, *words: Any, **options: Any) -> list[Any]: ...

else:
    RawRedis = redis.Redis
    RawAsyncRedis = redis.asyncio.Redis

DAY_MS = 86_400_000


def expire_leases(url: str, stream: str, group: str) -> None:
    """Make each pending entry look a day idle, in place of waiting until its lease ends.

    For the entries of a killed worker. A live worker that lost one this way would see it delivered again.
    """
    with RawRedis.from_url(url, protocol=2) as client:
        for row in client.xpending_range(stream, group, "-", "+", 10_000):
            client.xclaim(stream, group, row["consumer"], 0, [row["message_id"]], idle=DAY_MS, justid=True)
