"""Pause a stream, or one event of it, on all hosts. The server stores the pause, so it survives restarts.

A paused stream is not read. Messages of a paused event are read and parked, so that the other events of
the stream continue. When the pause ends, they are returned to the end of the stream. Running handlers
continue.

See docs/decisions/0016.
"""

from conquiet.processor.delayed import Poll, read_pauses
from conquiet.processor.keys import Keys, keys_of
from conquiet.processor.policy import require_event
from conquiet.processor.scripts import script
from conquiet.redis_transport.client import AsyncClient, require_raw_client
from conquiet.redis_transport.client_commands import command

WHOLE_STREAM = "*"
_UNPARK = 200


class Pauses:
    """Sets, ends and tracks pauses.

    Args:
        client: A client without retries. The caller closes it.

    Attributes:
        exist: False if nothing was paused at the last poll.
    """

    def __init__(self, client: AsyncClient) -> None:
        require_raw_client(client)
        self._client = client
        self.exist = False
        self._known: dict[str, frozenset[str]] = {}

    async def pause(self, stream: str, *, event: str | None = None) -> bool:
        """Pause a stream, or one event of it. Return False if it was already paused."""
        return await self._change("pause", stream, event)

    async def resume(self, stream: str, *, event: str | None = None) -> bool:
        """End a pause. Return False if there was none. Parked messages are returned to the stream by the next polls."""
        return await self._change("resume", stream, event)

    async def paused(self, stream: str) -> dict[str, int]:
        """Return the pauses on the server: ``*`` for the whole stream, or events, and their start times (ms)."""
        keys = keys_of(stream)
        return read_pauses(await command(self._client, "HGETALL", keys.paused, stream=stream))

    def is_stream_paused(self, stream: str) -> bool:
        """Return True if the stream was paused at the last poll."""
        return WHOLE_STREAM in self._known.get(stream, ())

    def is_event_paused(self, stream: str, event: str) -> bool:
        """Return True if the event was paused at the last poll."""
        return event in self._known.get(stream, ())

    async def on_poll(self, keys: Keys, found: Poll) -> None:
        """Record the pauses, and return messages to the stream if their event is no longer paused."""
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
