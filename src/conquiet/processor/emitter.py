"""Putting messages in: now, later, once per id, or only the last of a burst.

Each call is one round trip and is sent once. If its reply is lost, ``QueueError.in_doubt`` says so; with
an ``id`` of yours it may be sent again, and whatever happened the first time, the message is there once.
The rules are in ``plans``; ``sync_emitter`` does the same without asyncio.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import redis.asyncio

from conquiet.errors import LifecycleError
from conquiet.processor.jobs import JobRecorder
from conquiet.processor.plans import Delay, Emitted, Moment, NewMessage, Plans, Step, answered, new_states
from conquiet.processor.settings import ProcessorSettings


class Emitter:
    """Emits to streams of one server.

    Args:
        client: A client without retries, such as ``clone_async`` makes. It stays the caller's.
        stream: Where messages go that name no stream.
        settings: Window of ids, chunk size, payload limit, and whether job states are kept.
        jobs: Writes those.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        stream: str,
        settings: ProcessorSettings | None = None,
        *,
        jobs: JobRecorder | None = None,
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._loop: asyncio.AbstractEventLoop | None = None
        self._plans = Plans(stream, ProcessorSettings() if settings is None else settings)

    async def emit(
        self,
        event: str,
        data: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,  # noqa: A002 - the word for it
        delay: Delay | None = None,
        at: Moment | None = None,
        stream: str | None = None,
        max_attempts: int | None = None,
        debounce: str | None = None,
    ) -> Emitted:
        """Emit one message.

        Args:
            event: Picks the handler.
            data: A JSON object, for the handler.
            id: Identity of the message. Given here, a second message with this id is not emitted within the
                dedupe window; left out, the message gets an id of its own.
            delay: Seconds until it is due, by the server's clock.
            at: The moment it is due: seconds since the epoch, or a datetime with a time zone.
            stream: Another stream than the usual one.
            max_attempts: Attempts in total, in place of the handler's setting.
            debounce: With ``delay``: a name under which only the last message emitted waits; each new one
                replaces the one before and starts the wait again.

        Raises:
            ConfigurationError: An argument is wrong; nothing was sent.
            PayloadError: ``data`` cannot be JSON or is too large; nothing was sent.
            QueueError: The server refused, or did not answer.
            LifecycleError: This emitter was used in another event loop before.
        """
        message = NewMessage(event, data, id, delay, at, max_attempts)
        return (await self._send(self._plans.steps((message,), stream, debounce=debounce)))[0]

    async def emit_many(self, messages: Iterable[NewMessage], *, stream: str | None = None) -> list[Emitted]:
        """Emit many messages, ``chunk_size`` of them in one atomic step each: all of a chunk are there, or none.

        Arguments are checked before anything is sent. If a chunk fails, the chunks before it are there;
        with ids of yours the whole call may be repeated.
        """
        return await self._send(self._plans.steps(messages, stream))

    async def _send(self, steps: Iterable[Step]) -> list[Emitted]:
        self._stay()
        emitted: list[Emitted] = []
        for step in steps:
            reply = await step.script.call(self._client, step.names, step.args, stream=step.keys.stream)
            sent = answered(step, reply)
            if self._jobs is not None and (states := new_states(step, sent)):
                # Afterwards, and only for jobs not yet known: a host may have run one of them by now.
                await self._jobs.note_all(step.keys, states, only_new=True)
            emitted += sent
        return emitted

    def leave_loop(self) -> None:
        """Say that the connections are closed: the next loop may have this emitter."""
        self._loop = None

    def _stay(self) -> None:
        """Keep to one event loop: an asyncio connection is of use in the loop that opened it, and in no other."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise LifecycleError(
                    "this emitter was used in another event loop, and its connections are of that one; make one for "
                    "each loop, or close() your Processor at the end of each, or use SyncEmitter"
                )
            self._loop = loop
