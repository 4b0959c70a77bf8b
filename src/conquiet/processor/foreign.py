"""Decide whether a stream belongs to a Processor before dead-lettering undecodable entries.

    first message of a Processor read ───────────▶ the stream is accepted: held and later entries are dead-lettered
    no more entries for QUIET_S ─────────────────▶ held entries are dead-lettered; the stream stays undecided
    ``foreign_limit`` entries, and no message ───▶ read both ends of the stream; a message there: accepted
                                                   no message there: ``Stop``, held entries stay pending

Without this, a Processor with a mistyped stream name would move all of another application's entries to dead letters
that cannot be replayed. A held entry occupies no worker of the engine: it is only pending for this consumer.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from conquiet.core.json_codec import TOO_LARGE, CodecError
from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.core.settlement import DeadLetter, KeepPending, Settlement, Stop
from conquiet.errors import ConquietError, MalformedMessageError
from conquiet.processor.envelope import EnvelopeError, from_payload
from conquiet.queue.codec import decode_fields
from conquiet.redis_transport.client import AsyncClient
from conquiet.redis_transport.client_commands import command, commands
from conquiet.runtime.message import RuntimeMessage

logger = FactLogger(__name__)

QUIET_S = 2.0
_ENDS = 20
_SHOWN = 65_536
_LARGEST = 2**30


class ForeignGuard:
    """Decides for each stream whether undecodable entries may be dead-lettered.

    Args:
        limit: Stop if the first ``limit`` entries of a stream are not Processor messages. None never stops.
        is_ours: Returns True if a Processor message is at either end of the stream.
        settle: Settles a held entry later, through the engine.

    Attributes:
        ours: Streams that are known to belong to a Processor.
    """

    def __init__(
        self,
        limit: int | None,
        is_ours: Callable[[str], Awaitable[bool]],
        settle: Callable[[RuntimeMessage, Settlement], Awaitable[None]],
    ) -> None:
        self._limit = limit
        self._is_ours = is_ours
        self._settle = settle
        self.ours: set[str] = set()
        self._seen: dict[str, set[str]] = {}
        self._held: dict[str, dict[str, tuple[RuntimeMessage, DeadLetter]]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()

    def accept(self, stream: str) -> None:
        """Accept a stream, because a Processor message was read from it."""
        if stream not in self.ours:
            self.ours.add(stream)
            self._release(stream)

    async def decide(self, message: RuntimeMessage, settlement: DeadLetter) -> Settlement:
        """Return the settlement of an undecodable entry. A held entry is kept pending."""
        stream = message.stream
        if self._stopped:
            return KeepPending(settlement.failure)
        if self._limit is None or stream in self.ours:
            return settlement
        seen = self._seen.setdefault(stream, set())
        is_new = message.id not in seen
        seen.add(message.id)
        if stream in self._timers:
            self._timers[stream].cancel()
        if is_new and len(seen) == self._limit:
            return await self._judge(message, settlement)
        self._held.setdefault(stream, {})[message.id] = (message, settlement)
        if len(seen) < self._limit:
            self._timers[stream] = asyncio.get_running_loop().call_later(QUIET_S, self._release, stream)
        return KeepPending(settlement.failure)

    async def finish(self) -> None:
        """Wait for running tasks. Held entries stay pending."""
        for timer in self._timers.values():
            timer.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _judge(self, message: RuntimeMessage, settlement: DeadLetter) -> Settlement:
        stream = message.stream
        try:
            ours = await self._is_ours(stream)
        except ConquietError:
            ours = False  # unknown: stopping loses nothing
        if ours or stream in self.ours:
            self.accept(stream)
            return settlement
        if self._stopped:
            return KeepPending(settlement.failure)
        self._stopped = True
        return Stop(
            MalformedMessageError(
                f"the first {self._limit} entries read from stream {printable(stream)!r} are no messages of a "
                'processor: those have one field "data" with {"v": 1, "event": …}. Check the name of the stream. '
                "The entries stay pending. foreign_limit=None in ProcessorSettings dead-letters them instead",
                stream=stream,
                message_id=message.id,
                reason="its first entries are all foreign",
            )
        )

    def _release(self, stream: str) -> None:
        entries = self._held.pop(stream, {})
        if self._stopped:
            return
        for message, settlement in entries.values():
            task = asyncio.create_task(self._settle_held(message, settlement), name="conquiet-foreign")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _settle_held(self, message: RuntimeMessage, settlement: DeadLetter) -> None:
        try:
            await self._settle(message, settlement)
        except Exception as error:  # noqa: BLE001 - the entry stays pending and is claimed again
            text = "foreign entry not dead-lettered: it stays pending"
            logger.failure(logging.WARNING, text, error, stream=message.stream, message_id=message.id)


async def fields_of(client: AsyncClient, stream: str, entry_id: str, reason: str) -> dict[str, str] | None:
    """Return the fields of an entry as text that JSON can hold. None if the entry does not exist.

    An entry that is only too large, or that ``decode`` could not read, is returned whole, because its content is stored
    nowhere else. For other entries each name and value is truncated.
    """
    found = await command(client, "XRANGE", stream, entry_id, entry_id, stream=stream)
    if not found:
        return None
    fields = found[0][1]
    most = None if reason == TOO_LARGE or reason.startswith("decode()") else _SHOWN
    return {_shown(name, most): _shown(value, most) for name, value in zip(fields[::2], fields[1::2], strict=True)}


async def has_messages(client: AsyncClient, stream: str) -> bool:
    """Return True if a message of a processor is among the oldest or newest entries of a stream."""
    oldest, newest = ("XRANGE", stream, "-", "+"), ("XREVRANGE", stream, "+", "-")
    sent = [(*words, "COUNT", _ENDS) for words in (oldest, newest)]
    ends = await commands(client, sent, action="reading entries", stream=stream)
    return any(_is_message(fields) for end in ends for _, fields in end)


def _is_message(fields: Sequence[bytes]) -> bool:
    try:
        from_payload(decode_fields(fields, max_bytes=_LARGEST), entry_id="0-0")
    except (CodecError, EnvelopeError):
        return False
    return True


def _shown(raw: bytes, most: int | None) -> str:
    return raw[:most].decode(errors="backslashreplace")
