"""Pausing a stream, or one event of it, on all hosts at once. A pause is kept by the server: it survives restarts.

A paused stream is not read. Of a paused event the messages are read and parked, which keeps the other
events of the stream going; they come back to the end of the stream when the pause is over. What is
running goes on.

See docs/decisions/0017.
"""

from conquiet.processor.delayed import Poll, read_pauses
from conquiet.processor.keys import Keys, keys_of
from conquiet.processor.policy import require_event
from conquiet.processor.scripts import script
from conquiet.redis_transport.client import AsyncClient

WHOLE_STREAM = "*"
_UNPARK = 200


class Pauses:
    """Sets, ends and knows pauses.

    Args:
        client: A client without retries; it stays the caller's.

    Attributes:
        exist: False if nothing was paused at the last poll.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.exist = False
        self._known: dict[str, frozenset[str]] = {}

    async def pause(self, stream: str, event: str | None = None) -> bool:
        """Pause a stream, or one event of it. Returns False if it was paused already."""
        return await self._change("pause", stream, event)

    async def resume(self, stream: str, event: str | None = None) -> bool:
        """End a pause. Returns False if there was none. Parked messages come back by and by."""
        return await self._change("resume", stream, event)

    async def paused(self, stream: str) -> dict[str, int]:
        """Return what is paused, as the server has it: ``*`` for the whole stream or events, and since when (ms)."""
        keys = keys_of(stream)
        return read_pauses(await script("hash").call(self._client, (keys.paused,), (), stream=stream))

    def is_stream_paused(self, stream: str) -> bool:
        """True if the stream was paused at the last poll."""
        return WHOLE_STREAM in self._known.get(stream, ())

    def is_event_paused(self, stream: str, event: str) -> bool:
        """True if the event was paused at the last poll."""
        return event in self._known.get(stream, ())

    async def on_poll(self, keys: Keys, found: Poll) -> None:
        """Record what is paused, and return messages to the stream that are parked without a reason."""
        self._known[keys.stream] = frozenset(found.paused)
        self.exist = any(self._known.values())
        for event in found.parked - found.paused.keys():
            names = (keys.stream, keys.paused, keys.parked, keys.parked_event(event))
            while await script("unpark").call(self._client, names, (event, _UNPARK), stream=keys.stream):
                pass

    async def _change(self, name: str, stream: str, event: str | None) -> bool:
        keys = keys_of(stream)
        what = WHOLE_STREAM if event is None else require_event(event)
        return bool(await script(name).call(self._client, (keys.paused, keys.wake), (what,), stream=stream))
