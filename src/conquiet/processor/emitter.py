"""Putting messages in: now, later, once per id, or only the last of a burst.

Each call is one round trip and is sent once. If its reply is lost, ``QueueError.in_doubt`` says so; with
an ``id`` of yours it may be sent again, and whatever happened the first time, the message is there once.
The rules are in ``plans``; ``sync_emitter`` does the same without asyncio.

See docs/decisions/0011.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from conquiet.core import tracing
from conquiet.core.tracing import Headers
from conquiet.errors import LifecycleError
from conquiet.processor.emit_requests import (
    Delay,
    EmitPlanner,
    Emitted,
    Moment,
    NewMessage,
    ScriptCall,
    new_states,
    parse_reply,
    with_headers,
)
from conquiet.processor.jobs import JobRecorder
from conquiet.processor.settings import ProcessorSettings
from conquiet.redis_transport.client import AsyncClient
from conquiet.redis_transport.confirmation import Confirmation
from conquiet.redis_transport.confirmed import run_confirmed


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
        client: AsyncClient,
        stream: str,
        settings: ProcessorSettings | None = None,
        *,
        jobs: JobRecorder | None = None,
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._loop: asyncio.AbstractEventLoop | None = None
        self._settings = ProcessorSettings() if settings is None else settings
        self._plans = EmitPlanner(stream, self._settings)

    async def emit(  # noqa: PLR0913 - what a user may say about a message, by keyword
        self,
        event: str,
        data: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,  # noqa: A002 - the word for it
        delay_s: Delay | None = None,
        at: Moment | None = None,
        stream: str | None = None,
        max_attempts: int | None = None,
        debounce: str | None = None,
        key: str | None = None,
        replicas: int | None = None,
        headers: Headers | None = None,
    ) -> Emitted:
        """Emit one message.

        Args:
            event: Picks the handler.
            data: A JSON object, for the handler.
            id: Identity of the message. Given here, a second message with this id is not emitted within the
                dedupe window; left out, the message gets an id of its own.
            delay_s: Seconds (or a timedelta) until it is due, by the server's clock.
            at: The moment it is due: seconds since the epoch, or a datetime with a time zone.
            stream: Another stream than the usual one.
            max_attempts: Attempts in total, in place of the handler's setting. The worker bounds it by that setting,
                or by its ``max_attempts_limit``.
            debounce: With ``delay_s``: a name under which only the last message emitted waits; each new one
                replaces the one before and starts the wait again.
            key: Messages of one key run one at a time and in the order in which they were emitted (with ``delay_s`` or
                ``at``: in which they are due), over all hosts, retries included; many keys run side by side.
            replicas: Return when so many replicas of the server have the message, so that a fail-over to one of them
                does not lose it; by default ``settings.replicas``.
            headers: Names and texts that travel with the message, through retries too: ``ctx.headers``. A trace
                context is added if tracing is on.

        Raises:
            NotReplicatedError: They have not confirmed it in time. The message is written: with an ``id`` of yours the
                call may be repeated.
            ConfigurationError: An argument is wrong; nothing was sent.
            PayloadError: ``data`` cannot be JSON or is too large; nothing was sent.
            QueueError: The server refused, or did not answer.
            LifecycleError: This emitter was used in another event loop before.
        """
        how = self._settings.confirmation(replicas)
        if tracing.active is None:
            message = NewMessage(event, data, id, delay_s, at, max_attempts, key=key, headers=headers)
            return (await self._send(self._plans.steps((message,), stream, debounce=debounce), how))[0]
        name = self._plans.name(stream)
        with tracing.active.send("redis", name, event=event, message_id=id, headers=headers) as span:
            message = NewMessage(event, data, id, delay_s, at, max_attempts, key=key, headers=span.headers)
            return (await self._send(self._plans.steps((message,), stream, debounce=debounce), how))[0]

    @property
    def client(self) -> AsyncClient:
        """The client that messages are sent with."""
        return self._client

    async def emit_many(
        self, messages: Iterable[NewMessage], *, stream: str | None = None, replicas: int | None = None
    ) -> list[Emitted]:
        """Emit many messages, ``chunk_size`` of them in one atomic step each: all of a chunk are there, or none.

        Arguments are checked before anything is sent. If a chunk fails, the chunks before it are there;
        with ids of yours the whole call may be repeated.
        """
        how = self._settings.confirmation(replicas)
        if tracing.active is None:
            return await self._send(self._plans.steps(messages, stream), how)
        batch = list(messages)
        with tracing.active.send("redis", self._plans.name(stream), count=len(batch)) as span:
            return await self._send(self._plans.steps(with_headers(batch, span.headers), stream), how)

    async def _send(self, steps: Iterable[ScriptCall], how: Confirmation) -> list[Emitted]:
        self._check_loop()
        emitted: list[Emitted] = []
        for step in steps:
            place = step.keys.stream
            if how.replicas:
                reply = await run_confirmed(step.script, self._client, step.names, step.args, how, place)
            else:
                reply = await step.script.call(self._client, step.names, step.args, stream=place)
            sent = parse_reply(step, reply)
            if self._jobs is not None and (states := new_states(step, sent)):
                # Afterwards, and only for jobs not yet known: a host may have run one of them by now.
                await self._jobs.record_all(step.keys, states, only_new=True)
            emitted += sent
        return emitted

    def leave_loop(self) -> None:
        """Say that the connections are closed: the next loop may have this emitter."""
        self._loop = None

    def _check_loop(self) -> None:
        """Keep to one event loop: an asyncio connection is of use in the loop that opened it, and in no other."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise LifecycleError(
                    "this emitter was used in another event loop, and its connections are of that one; make one for "
                    "each loop, or close() your Processor at the end of each, or use SyncEmitter"
                )
            self._loop = loop
