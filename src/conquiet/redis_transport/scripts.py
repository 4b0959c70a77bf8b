"""Lua scripts: loaded from a package once, sent by digest, run on one server as one step.

A server that does not have a script (after a restart, a failover or SCRIPT FLUSH) replies NOSCRIPT and has done
nothing, so sending the whole text then is not a repetition. The text is sent outside of the ``except`` block: an error
with NOSCRIPT as its context would be treated as a refusal, although the script may have run.

``call`` and ``call_sync`` run on a redis-py client of either kind, translate errors and bound the commands in flight
(``limiter``).

A script that computes names of keys cannot declare all of them, and while a slot of a Redis Cluster is in migration
the server checks the declared keys only: the script would find a key missing that is still, or already, on the other
node. Such a script has a line ``-- makes names of keys``, and one more key is declared for it, which never exists. A
node refuses a command while its slot is in migration and some of its keys are missing (TRYAGAIN), so the script waits
until all keys are on one node. See docs/decisions/0015.

Scripts use redis-py's client and not ``AsyncRedisConnection``: callers emit and settle from many concurrent tasks, and
a pool gives each of them its own connection. A lost connection then leaves a single command in doubt. See
docs/decisions/0008.
"""

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Self

import redis
import redis.asyncio
from redis.exceptions import NoScriptError, RedisError, ResponseError

from conquiet.core.threads import run_without_loop
from conquiet.redis_transport.client import AnyServer
from conquiet.redis_transport.client_commands import execute, execute_all
from conquiet.redis_transport.commands import Word
from conquiet.redis_transport.errors import translate_errors
from conquiet.redis_transport.hash_tags import slot_prefix
from conquiet.redis_transport.limiter import limit

Arg = Word
"""A word of a command: here a key or an argument of a script."""

_WITH = "-- with:"
_MAKES_NAMES = "-- makes names of keys"


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua script.

    Attributes:
        name: Name of its file, for errors and metrics.
        source: Its text.
        sha: The digest under which a server knows it.
        action: Its purpose, for an error's text.
        makes_names: True if it uses keys that its caller does not declare.
    """

    name: str
    source: str
    sha: str
    action: str
    makes_names: bool = False

    @classmethod
    def from_source(cls, name: str, source: str, *, action: str = "") -> Self:
        """Return the script with this text."""
        # Redis names scripts by SHA-1; nothing is protected by it.
        sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        return cls(name, source, sha, action or name, f"\n{_MAKES_NAMES}" in f"\n{source}")

    def declared(self, keys: Sequence[str]) -> Sequence[str]:
        """Return the keys to send: these, and a key that never exists if the script computes names of others."""
        return [*keys, f"{slot_prefix(keys[0])}:absent"] if self.makes_names else keys

    def words(self, keys: Sequence[str], args: Sequence[Arg], *, in_full: bool = False) -> list[Arg]:
        """Return the command that runs the script: by its digest, or in full."""
        begin: list[Arg] = ["EVAL", self.source] if in_full else ["EVALSHA", self.sha]
        declared = self.declared(keys)
        return [*begin, len(declared), *declared, *args]

    def parsed(self, reply: Any) -> Any:
        """Return the result of ``run`` for this reply to ``words``."""
        return reply

    async def run(self, client: AnyServer, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Run the script once. Raises redis-py's errors."""
        with contextlib.suppress(NoScriptError):
            return self.parsed(await execute(client, self.words(keys, args)))
        return self.parsed(await execute(client, self.words(keys, args, in_full=True)))

    async def call(
        self, client: AnyServer, keys: Sequence[str], args: Sequence[Arg], *, stream: str, group: str = ""
    ) -> Any:
        """Run the script once; a failure is a ``QueueError`` that names the stream and no argument."""
        with translate_errors(self.action, stream=stream, group=group):
            async with limit(client, keys[0]):
                return await self.run(client, keys, args)

    def call_sync(self, client: redis.Redis, keys: Sequence[str], args: Sequence[Arg], *, stream: str) -> Any:
        """Do what ``call`` does, without asyncio."""
        return run_without_loop(self.call(client, keys, args, stream=stream))


async def run_many(
    client: redis.asyncio.Redis, calls: Sequence[tuple[Script, Sequence[str], Sequence[Arg]]]
) -> list[Any]:
    """Run several scripts in one round trip; refusals are among the replies. Raises redis-py's errors."""
    replies = await execute_all(client, [script.words(keys, args) for script, keys, args in calls])
    for place, reply in enumerate(replies):
        if isinstance(reply, NoScriptError):
            script, keys, args = calls[place]
            try:
                replies[place] = await script.run(client, keys, args)
            except ResponseError as error:
                replies[place] = error
        elif isinstance(reply, RedisError) and not isinstance(reply, ResponseError):
            raise reply
    return replies


@cache
def load_script(package: str, name: str, action: str = "") -> Script:
    """Return ``lua/<name>.lua`` of a package, read once per process.

    A first line ``-- with: <other>`` puts the functions of ``lua/<other>.lua`` in front of it; ``<package>/<other>``
    names one of another package.
    """
    source = _read(package, name)
    if source.startswith(_WITH):
        elsewhere, _, other = source[len(_WITH) : source.index("\n")].strip().rpartition("/")
        source = _read(elsewhere or package, other) + source
    return Script.from_source(name, source, action=action)


def _read(package: str, name: str) -> str:
    return resources.files(package).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
