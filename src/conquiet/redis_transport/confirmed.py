"""Writes that count only once replicas have them: WAIT, on the connection of the write.

Redis replicates asynchronously: a master that dies may have acknowledged a write that no replica has, and the promoted
replica does not know it. WAIT holds the answer back until so many replicas have confirmed everything up to the last
write of its connection. A small write goes out between the two: a step that found its message there already (the same
id once more) has written nothing, and WAIT would have nothing to wait for.

If a node of a cluster redirects the step, all three commands go to the other node, in order.

See docs/decisions/0056.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import NoScriptError, RedisError, ResponseError

from conquiet.redis_transport.confirmation import Confirmation
from conquiet.redis_transport.errors import translate, translate_errors
from conquiet.redis_transport.scripts import Arg, Script


async def run_confirmed(
    script: Script,
    client: redis.asyncio.Redis,
    keys: Sequence[str],
    args: Sequence[Arg],
    how: Confirmation,
    stream: str,
) -> Any:
    """Run a script once and return its reply when so many replicas have confirmed it.

    Raises:
        NotReplicatedError: They have not, in time. The script has run.
        QueueError: The server refused, or did not answer.
    """
    with translate_errors(script.action, stream=stream):
        with contextlib.suppress(NoScriptError):
            return _checked(await _together(client, script.words(keys, args), how, stream), how, stream, script)
        words = script.words(keys, args, in_full=True)
        return _checked(await _together(client, words, how, stream), how, stream, script)


def run_confirmed_sync(
    script: Script, client: redis.Redis, keys: Sequence[str], args: Sequence[Arg], how: Confirmation, stream: str
) -> Any:
    """Do what ``run_confirmed`` does, without asyncio."""
    with translate_errors(script.action, stream=stream):
        with contextlib.suppress(NoScriptError):
            return _checked(_together_sync(client, script.words(keys, args), how, stream), how, stream, script)
        words = script.words(keys, args, in_full=True)
        return _checked(_together_sync(client, words, how, stream), how, stream, script)


def checked_call(replies: Sequence[Any], how: Confirmation, *, stream: str, group: str, command: str) -> Any:
    """Return the first of three packed replies if the other two confirm it."""
    first, *confirmation = replies
    if isinstance(first, ResponseError):
        raise translate(first, stream=stream, group=group, command=command) from first
    how.check(confirmation, stream=stream, command=command)
    return first


def _checked(replies: Sequence[Any], how: Confirmation, stream: str, script: Script) -> Any:
    first, *confirmation = replies
    if isinstance(first, RedisError | OSError):
        raise first
    how.check(confirmation, stream=stream, command=script.action)
    return script.parsed(first)


async def _together(client: redis.asyncio.Redis, words: Sequence[Arg], how: Confirmation, stream: str) -> Sequence[Any]:
    commands = [tuple(words), *how.commands(stream)]
    send = getattr(client, "send_together", None)
    if send is not None:
        replies: list[Any] = await send([(command, {}) for command in commands])
        return replies
    async with client.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command)
        return list(await pipe.execute(raise_on_error=False))


def _together_sync(client: redis.Redis, words: Sequence[Arg], how: Confirmation, stream: str) -> Sequence[Any]:
    commands = [tuple(words), *how.commands(stream)]
    send = getattr(client, "send_together", None)
    if send is not None:
        replies: list[Any] = send([(command, {}) for command in commands])
        return replies
    with client.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command)  # type: ignore[no-untyped-call]
        return list(pipe.execute(raise_on_error=False))
