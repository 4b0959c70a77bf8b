"""Send plain commands on a cloned redis-py client, for callers of many tasks or threads (scripts: ``scripts``).

Every function here sends each command once, bounds the commands in flight (``limiter``), raises ``QueueError`` with
``in_doubt`` and returns replies as the server sent them. redis-py looks up its response callbacks by the command's name
as text, so a name in bytes has none, on every client.

A client may be of either kind. With a synchronous client the coroutines never suspend: they send with a blocking call,
and ``run_without_loop`` returns their result.
"""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import redis

from conquiet.core.task_cancellation import reraise_swallowed_cancellation
from conquiet.core.threads import run_without_loop
from conquiet.redis_transport.client import AnyServer, is_async
from conquiet.redis_transport.commands import Word
from conquiet.redis_transport.errors import translate_errors
from conquiet.redis_transport.limiter import limit
from conquiet.redis_transport.routing import key_of, raise_first_error


async def execute(client: AnyServer, words: Sequence[Any]) -> Any:
    """Send one command on a client of either kind and return its reply. Raises redis-py's errors."""
    if is_async(client):
        with reraise_swallowed_cancellation():
            return await client.execute_command(*words)  # type: ignore[no-untyped-call]
    return client.execute_command(*words)  # type: ignore[no-untyped-call]


async def execute_all(client: AnyServer, commands: Iterable[Sequence[Any]]) -> list[Any]:
    """Send commands in one round trip and return their replies, errors among them."""
    replies: list[Any]
    if is_async(client):
        async with client.pipeline(transaction=False) as pipe:
            for words in commands:
                pipe.execute_command(*words)
            with reraise_swallowed_cancellation():
                replies = await pipe.execute(raise_on_error=False)
    else:
        with client.pipeline(transaction=False) as blocking:
            for words in commands:
                blocking.execute_command(*words)  # type: ignore[no-untyped-call]
            replies = blocking.execute(raise_on_error=False)
    return replies


async def command(
    client: AnyServer,
    *words: Word,
    action: str = "",
    stream: str = "",
    group: str = "",
    blocking: bool = False,
) -> Any:
    """Send one command and return its reply.

    Args:
        client: A client without retries.
        words: The command.
        action: The purpose, for an error's text; the command's name by default.
        stream: The stream, for an error.
        group: The consumer group, for an error.
        blocking: The command waits in the server. It does not count as one in flight: others would wait for it.

    Raises:
        QueueError: The server refused or did not reply.
    """
    with translate_errors(action or str(words[0]), stream=stream, group=group):
        async with nullcontext() if blocking else limit(client, key_of(words)):
            return await execute(client, _unparsed(words))


async def commands(
    client: AnyServer,
    sent: Sequence[Sequence[Word]],
    *,
    action: str,
    stream: str = "",
    group: str = "",
    keep_errors: bool = False,
) -> list[Any]:
    """Send commands in one round trip, per node in a cluster, and return their replies in order.

    Args:
        client: A client without retries.
        sent: The commands.
        action: The purpose, for an error's text.
        stream: The stream, for an error.
        group: The consumer group, for an error.
        keep_errors: Return a refusal, or a node's lost reply, as redis-py's error in the place of the reply.

    Raises:
        QueueError: The server refused or did not reply.
    """
    with translate_errors(action, stream=stream, group=group):
        async with limit(client, key_of(sent[0])):
            replies = await execute_all(client, map(_unparsed, sent))
        return replies if keep_errors else raise_first_error(replies)


def command_sync(client: redis.Redis, *words: Word, **options: Any) -> Any:
    """Do what ``command`` does, without asyncio."""
    return run_without_loop(command(client, *words, **options))


def commands_sync(client: redis.Redis, sent: Sequence[Sequence[Word]], **options: Any) -> list[Any]:
    """Do what ``commands`` does, without asyncio."""
    return run_without_loop(commands(client, sent, **options))


def _unparsed(words: Sequence[Word]) -> Sequence[Word]:
    """Return the command with its name in bytes, so that redis-py does not parse the reply."""
    name, *rest = words
    return (name.encode() if isinstance(name, str) else name, *rest)
