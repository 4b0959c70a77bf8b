"""Lua scripts: loaded from a package once, sent by digest, run on one server as one step.

A server that does not have a script (after a restart, a failover or SCRIPT FLUSH) answers NOSCRIPT and has done
nothing, so sending the whole text then is not a repetition. The text is sent outside of the ``except`` block: an error
with NOSCRIPT as its context would be taken for a refusal, although the script may have run.

``call`` and ``call_sync`` run on a redis-py client and translate errors. They allow ``MAX_CONCURRENT`` commands per
client at a time; others wait. redis-py 8 opens at most 100 connections and raises at the next command.

A script that makes names of keys itself cannot declare all of them, and while a slot of a Redis Cluster is in migration
the server checks the declared ones only: the script would find a key missing that is still, or already, on the other
node. Such a script has a line ``-- makes names of keys``, and one more key is declared for it, which never exists. A
node refuses a command of which some keys are missing while their slot is in migration (TRYAGAIN), so the script waits
until all keys are on one node. See docs/decisions/0055.

Why redis-py's client and not ``AsyncRedisConnection``: callers emit and settle from many tasks at once, and a pool
gives each its own connection, so that one lost connection leaves one command in doubt and not all of them.
"""

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

import redis
import redis.asyncio
from redis.exceptions import NoScriptError, RedisError, ResponseError

from conquiet.core.task_cancellation import reraise_swallowed_cancellation
from conquiet.redis_transport.commands import Word
from conquiet.redis_transport.errors import translate_errors
from conquiet.redis_transport.hash_tags import slot_prefix

Arg = Word
"""A word of a command: here a key or an argument of a script."""
C = TypeVar("C", redis.Redis, redis.asyncio.Redis)

_WITH = "-- with:"
_MAKES_NAMES = "-- makes names of keys"

MAX_CONCURRENT = 32
"""Commands of one client in flight. Measured: more are not faster, and redis-py 8 refuses more than 100."""


@dataclass(frozen=True, slots=True)
class Script:
    """One Lua script.

    Attributes:
        name: Name of its file, for errors and metrics.
        source: Its text.
        sha: The digest under which a server knows it.
        action: What it does, for an error's text.
        makes_names: It uses keys that its caller does not name.
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
        """Return the keys to send: these, and one that never exists if the script makes names of others itself."""
        return [*keys, f"{slot_prefix(keys[0])}:absent"] if self.makes_names else keys

    def words(self, keys: Sequence[str], args: Sequence[Arg], *, in_full: bool = False) -> list[Arg]:
        """Return the command that runs the script: by its digest, or in full."""
        begin: list[Arg] = ["EVAL", self.source] if in_full else ["EVALSHA", self.sha]
        declared = self.declared(keys)
        return [*begin, len(declared), *declared, *args]

    def parsed(self, reply: Any) -> Any:
        """Return what ``run`` returns for this reply to ``words``."""
        return reply

    async def run(self, client: redis.asyncio.Redis, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Run the script once. Errors are those of redis-py."""
        with contextlib.suppress(NoScriptError):
            return self.parsed(await client.execute_command(*self.words(keys, args)))  # type: ignore[no-untyped-call]
        words = self.words(keys, args, in_full=True)
        return self.parsed(await client.execute_command(*words))  # type: ignore[no-untyped-call]

    async def call(
        self, client: redis.asyncio.Redis, keys: Sequence[str], args: Sequence[Arg], *, stream: str, group: str = ""
    ) -> Any:
        """Run the script once; a failure is a ``QueueError`` that names the stream and no argument."""
        with translate_errors(self.action, stream=stream, group=group):
            async with _async_limit(_node(client, keys)):
                with reraise_swallowed_cancellation():
                    return await self.run(client, keys, args)

    def run_sync(self, client: redis.Redis, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        """Do what ``run`` does, without asyncio."""
        with contextlib.suppress(NoScriptError):
            return self.parsed(client.execute_command(*self.words(keys, args)))  # type: ignore[no-untyped-call]
        words = self.words(keys, args, in_full=True)
        return self.parsed(client.execute_command(*words))  # type: ignore[no-untyped-call]

    def call_sync(self, client: redis.Redis, keys: Sequence[str], args: Sequence[Arg], *, stream: str) -> Any:
        """Do what ``call`` does, without asyncio."""
        with translate_errors(self.action, stream=stream), _sync_limit(_node(client, keys)):
            return self.run_sync(client, keys, args)


async def run_many(
    client: redis.asyncio.Redis, calls: Sequence[tuple[Script, Sequence[str], Sequence[Arg]]]
) -> list[Any]:
    """Run several scripts in one round trip; refusals are among the replies. Errors are those of redis-py."""
    async with client.pipeline(transaction=False) as pipe:
        for script, keys, args in calls:
            pipe.execute_command(*script.words(keys, args))
        replies: list[Any] = await pipe.execute(raise_on_error=False)
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


_async_limits: WeakKeyDictionary[redis.asyncio.Redis, tuple[asyncio.AbstractEventLoop, asyncio.Semaphore]] = (
    WeakKeyDictionary()
)
_sync_limits: WeakKeyDictionary[redis.Redis, threading.Semaphore] = WeakKeyDictionary()


def _node(client: C, keys: Sequence[str]) -> C:
    """Return what the bound belongs to: in a cluster each node has its own, so that a silent one delays no other."""
    node_of = getattr(client, "node_of", None)
    return client if node_of is None else node_of(keys[0])


def _async_limit(client: redis.asyncio.Redis) -> asyncio.Semaphore:
    """Return the bound on a client's commands in the running loop. A client belongs to one loop at a time."""
    loop = asyncio.get_running_loop()
    known = _async_limits.get(client)
    if known is None or known[0] is not loop:
        known = _async_limits[client] = (loop, asyncio.Semaphore(MAX_CONCURRENT))
    return known[1]


def _sync_limit(client: redis.Redis) -> threading.Semaphore:
    """Return the bound on a client's commands over all threads.

    Without a lock: one that is held during a fork would stay locked in the child. Two threads that create the bound at
    the same time get one each, and both together are still below redis-py's maximum.
    """
    known = _sync_limits.get(client)
    if known is None:
        known = _sync_limits[client] = threading.Semaphore(MAX_CONCURRENT)
    return known
