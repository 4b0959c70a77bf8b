"""Retries and dead letters, gathered: one round trip for all that came up while the last one was on its way.

    attempt ended ──▶ due ──▶ one script per stream ──▶ scheduled or buried, and acknowledged
                       ▲            │
                       └────────────┴── reply lost: sent again, and harmless then

A step acts only on an entry that is still pending for this consumer, and takes it off the pending
list. So a second sending finds nothing to do, and a host that was too slow (its message was taken over)
changes nothing either.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from redis.exceptions import NoScriptError, RedisError, ResponseError

from conquiet.metrics.registry import (
    PROCESSOR_DEAD_LETTERS_EXPIRED_TOTAL,
    PROCESSOR_NOT_OURS_TOTAL,
    PROCESSOR_SETTLE_REPEATS_TOTAL,
    never_raises,
)
from conquiet.processor.keys import Keys
from conquiet.processor.policy import milliseconds
from conquiet.processor.scripts import Arg, Script, script
from conquiet.processor.settings import ProcessorSettings
from conquiet.queue.faults import translate


@dataclass(slots=True)
class _Item:
    keys: Keys
    args: tuple[Arg, ...]
    is_burial: bool
    done: "asyncio.Future[bool]"


class Settler:
    """Settles messages of one consumer of one group.

    Args:
        client: A client without retries; it stays the caller's.
        group: The consumer group.
        consumer_id: The engine's name in it.
        settings: Repeats and retention.
    """

    def __init__(
        self, client: redis.asyncio.Redis, *, group: str, consumer_id: str, settings: ProcessorSettings
    ) -> None:
        self._client = client
        self._group = group
        self._consumer_id = consumer_id
        self._settings = settings
        self._due: list[_Item] = []
        self._flushing: asyncio.Task[None] | None = None

    async def reschedule(self, keys: Keys, entry_id: str, when: str, payload: bytes) -> bool:
        """Acknowledge an entry and let ``payload`` wait (``when`` as in ``emit.lua``), in one step.

        Returns:
            False if the entry was not ours any more; then nothing was done.

        Raises:
            QueueError: The server cannot be reached or refuses. The entry may still be pending.
        """
        return await self._settle(keys, (entry_id, when, payload), is_burial=False)

    async def bury(self, keys: Keys, entry_id: str, record: bytes) -> bool:
        """Acknowledge an entry and write its dead letter, in one step. Returns and raises as above."""
        return await self._settle(keys, (entry_id, record), is_burial=True)

    async def _settle(self, keys: Keys, args: tuple[Arg, ...], *, is_burial: bool) -> bool:
        item = _Item(keys, args, is_burial, asyncio.get_running_loop().create_future())
        self._due.append(item)
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush(), name="conquiet-settler")
        ours = await item.done
        if not ours:
            _count_not_ours(keys.stream)
        return ours

    async def _flush(self) -> None:
        while self._due:
            await asyncio.sleep(0)  # whatever else ends in this turn of the loop comes along
            batch, self._due = self._due[: self._settings.chunk_size], self._due[self._settings.chunk_size :]
            groups: dict[tuple[Keys, bool], list[_Item]] = {}
            for item in batch:
                groups.setdefault((item.keys, item.is_burial), []).append(item)
            calls = [
                _Call(self._command(keys, items, is_burial=burial), items) for (keys, burial), items in groups.items()
            ]
            try:
                await self._send(calls)
            finally:
                for item in batch:  # a cancelled flush must not leave anybody waiting
                    if not item.done.done():
                        item.done.cancel()

    def _command(self, keys: Keys, items: Sequence[_Item], *, is_burial: bool) -> "_Command":
        args: list[Arg] = [self._group, self._consumer_id]
        if is_burial:
            age_s = self._settings.dead_letters_max_age_s
            args += [self._settings.dead_letters_max or 0, 0 if age_s is None else max(1, milliseconds(age_s))]
        for item in items:
            args += item.args
        if is_burial:
            return _Command(script("bury"), (keys.stream, keys.dead), args, keys.stream)
        return _Command(script("reschedule"), (keys.stream, keys.delayed, keys.wake), args, keys.stream)

    async def _send(self, calls: Sequence["_Call"]) -> None:
        """Send until answered, a bounded number of times."""
        left = list(calls)
        for failures in range(1, self._settings.settle_attempts + 1):
            try:
                replies = await self._exchange(left)
            except (RedisError, OSError) as error:
                if failures == self._settings.settle_attempts:
                    for call in left:
                        call.fail(error, self._group)
                    return
                for call in left:
                    _count_repeat(call.command.stream)
                await asyncio.sleep(self._settings.settle_backoff.delay_s(failures))
            else:
                for call, reply in zip(left, replies, strict=True):
                    call.answer(reply, self._group)
                return

    async def _exchange(self, calls: Sequence["_Call"]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipe:
            for call in calls:
                command = call.command
                pipe.execute_command("EVALSHA", command.script.sha, len(command.keys), *command.keys, *command.args)
            replies: list[Any] = await pipe.execute(raise_on_error=False)
        for place, reply in enumerate(replies):
            if isinstance(reply, NoScriptError):
                command = calls[place].command
                try:
                    replies[place] = await command.script.run(self._client, command.keys, command.args)
                except ResponseError as error:
                    replies[place] = error
            elif isinstance(reply, RedisError) and not isinstance(reply, ResponseError):
                raise reply
        return replies


@dataclass(slots=True)
class _Command:
    script: Script
    keys: tuple[str, ...]
    args: list[Arg]
    stream: str


@dataclass(slots=True)
class _Call:
    command: _Command
    items: list[_Item]

    def answer(self, reply: Any, group: str) -> None:
        if isinstance(reply, ResponseError):
            self.fail(reply, group)
            return
        if self.items[0].is_burial:
            _count_expired(self.command.stream, reply[0])
            reply = reply[1:]
        for item, ours in zip(self.items, reply, strict=True):
            if not item.done.done():
                item.done.set_result(ours == 1)

    def fail(self, cause: RedisError | OSError, group: str) -> None:
        for item in self.items:
            if not item.done.done():
                error = translate(cause, stream=self.command.stream, group=group, command=self.command.script.name)
                error.__cause__ = cause
                item.done.set_exception(error)


@never_raises
def _count_not_ours(stream: str) -> None:
    PROCESSOR_NOT_OURS_TOTAL.labels(stream).inc()


@never_raises
def _count_repeat(stream: str) -> None:
    PROCESSOR_SETTLE_REPEATS_TOTAL.labels(stream).inc()


@never_raises
def _count_expired(stream: str, count: int) -> None:
    if count:
        PROCESSOR_DEAD_LETTERS_EXPIRED_TOTAL.labels(stream).inc(count)
