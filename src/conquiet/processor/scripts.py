"""The steps that have to be one step on the server: Lua, each on keys of one hash slot.

A script is sent by its digest. A server that does not have it (a restart, a failover, SCRIPT FLUSH)
says NOSCRIPT and has done nothing, so sending the whole text then is no repetition. It is sent after that answer
has been dealt with: an error with the answer as its context would pass for a refusal, though it may have been done.
"""

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import NoScriptError, RedisError

from conquiet.kernel.cancellation import heeding_cancellation
from conquiet.queue.faults import translate

Arg = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua script of this package.

    Attributes:
        name: Name of its file, for errors and metrics.
        source: Its text.
        sha: The digest under which a server knows it.
    """

    name: str
    source: str
    sha: str

    async def run(self, client: redis.asyncio.Redis, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Run it once. Errors are those of redis-py."""
        with contextlib.suppress(NoScriptError):
            return await client.execute_command(  # type: ignore[no-untyped-call]
                "EVALSHA", self.sha, len(keys), *keys, *args
            )
        return await client.execute_command(  # type: ignore[no-untyped-call]
            "EVAL", self.source, len(keys), *keys, *args
        )

    async def call(
        self, client: redis.asyncio.Redis, keys: Sequence[str], args: Sequence[Arg], *, stream: str, group: str = ""
    ) -> Any:
        """Run it once; what goes wrong is a ``QueueError`` that names the stream and no argument."""
        try:
            with heeding_cancellation():
                return await self.run(client, keys, args)
        except (RedisError, OSError) as error:
            raise translate(error, stream=stream, group=group, command=self.name) from error

    def run_sync(self, client: redis.Redis, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Do what ``run`` does, without asyncio."""
        with contextlib.suppress(NoScriptError):
            return client.execute_command("EVALSHA", self.sha, len(keys), *keys, *args)  # type: ignore[no-untyped-call]
        return client.execute_command("EVAL", self.source, len(keys), *keys, *args)  # type: ignore[no-untyped-call]

    def call_sync(self, client: redis.Redis, keys: Sequence[str], args: Sequence[Arg], *, stream: str) -> Any:
        """Do what ``call`` does, without asyncio."""
        try:
            return self.run_sync(client, keys, args)
        except (RedisError, OSError) as error:
            raise translate(error, stream=stream, group="", command=self.name) from error


class _AddOne(Script):
    """``emit_now`` for one message: a single command is atomic without a script, and costs half as much."""

    async def run(self, client: redis.asyncio.Redis, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        return [await client.execute_command("XADD", keys[0], "*", "data", args[0])]  # type: ignore[no-untyped-call]

    def run_sync(self, client: redis.Redis, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        return [client.execute_command("XADD", keys[0], "*", "data", args[0])]  # type: ignore[no-untyped-call]


ADD_ONE: Script = _AddOne("emit_now", "", "")


@cache
def script(name: str) -> Script:
    """Return the script of that name, read once per process."""
    source = resources.files("conquiet.processor").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
    # Redis names scripts by SHA-1; nothing is protected by it.
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
