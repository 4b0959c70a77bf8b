"""Reserve the consumer name: two live engines under one name would run each other's messages.

The name is reserved by a key that expires (``redis_transport.liveness``). If the holder was a process of this machine
that has ended, the name is taken over immediately, otherwise when the key expires. If the key is renewed during this
wait, its holder is alive and the engine does not start.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from conquiet.core.log import FactLogger
from conquiet.core.redaction import printable
from conquiet.errors import QueueError
from conquiet.redis_transport.client import SyncClient
from conquiet.redis_transport.client_commands import command_sync
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.errors import ResponseError
from conquiet.redis_transport.liveness import (
    HOLDERS,
    LEAVE_GROUP,
    LIVENESS_TTL_MS,
    RELEASE_NAME,
    RESERVE_NAME,
    has_ended,
    liveness_key,
    new_token,
    registry_key,
)
from conquiet.redis_transport.replies import text
from conquiet.redis_transport.worker_reports import (
    RECORD_LAST,
    RENEW_NAME,
    ConnectionId,
    deploys_key,
    history_base,
    workers_key,
)
from conquiet.runtime.health import EngineHealth
from conquiet.runtime.parts import EngineParts
from conquiet.runtime.reporting import WorkerReporter

logger = FactLogger(__name__)

RENEW_S: Final = LIVENESS_TTL_MS / 3_000
_LOOK_S = 0.2
_RELEASE_S = 1.0
_MOST_NAMES = 100

Call = Callable[[list[bytes]], Awaitable[list[Any]]]
Connections = Callable[[], tuple[ConnectionId | None, ...]]


class NameReservation:
    """The liveness keys of one engine, one per stream.

    Args:
        parts: The parts that all parts of the engine share. If activity is reported, a worker report is written with
            each renewal.
        connections: By stream, a function that returns the identities of its connections, for the report.
        changed: Set when the next renewal is due immediately, because the last report is outdated.
        health: Returns the health of the engine, for the report.
    """

    def __init__(
        self,
        parts: EngineParts,
        *,
        connections: Mapping[str, Connections],
        changed: threading.Event,
        health: Callable[[], EngineHealth],
    ) -> None:
        self._reporter: WorkerReporter | None = None
        if parts.settings.report_activity:
            self._reporter = WorkerReporter(parts.stats, concurrency=parts.concurrency, health=health)
        self._group, self._consumer_id = parts.group, parts.consumer_id
        self._token = new_token()
        self.changed = changed
        self._reserved: dict[str, str] = {}
        self._connections = connections
        self._closing = False
        self._is_renewing = False

    async def report(self, streams: Sequence[str], call: Call) -> None:
        """Renew immediately after a reconnect: workers that see the reported connection closed assume this one dead.

        An error reply is ignored; the next renewal tries again.

        Raises:
            ConnectionLostError: The connection broke.
        """
        if self._reporter is not None and not self._closing:
            made: dict[Sequence[ConnectionId], bytes] = {}
            renewals = [
                pack("EVAL", *self._renewal(stream, self._reserved[stream], self._facts(stream, made), ()))
                for stream in streams
                if stream in self._reserved
            ]
            if renewals:
                await call(renewals)

    async def reserve(self, streams: Sequence[str], call: Call) -> None:
        """Reserve the name in each stream.

        Raises:
            QueueError: A live engine holds the name. Nothing was read.
            ConnectionLostError: The connection broke.
        """
        for stream in streams:
            key = liveness_key(stream, self._group, self._consumer_id)
            last_ms = LIVENESS_TTL_MS * 1_000
            while not await self._is_ours(stream, key, call):
                holder, left_ms = await call([pack("GET", key), pack("PTTL", key)])
                if isinstance(holder, ResponseError) or isinstance(left_ms, ResponseError):
                    self._go_without(stream)
                    break
                if holder is not None and has_ended(text(holder)):
                    await call([pack("EVAL", RELEASE_NAME, 1, key, holder)])
                    continue
                if left_ms > last_ms:
                    raise self._taken(stream)
                last_ms = left_ms
                await asyncio.sleep(_LOOK_S)
        if self._reporter is not None:
            for stream in streams:
                await self._end_liveness_of_the_dead(stream, call)

    def renew(self, client_of: Callable[[str], SyncClient]) -> QueueError | None:
        """Renew the keys. Called in the heartbeat thread. Return an error if another engine has taken the name.

        Raises:
            QueueError: The server returned an error or did not reply.
        """
        self._is_renewing = True
        try:
            made: dict[Sequence[ConnectionId], bytes] = {}
            for stream, key in list(self._reserved.items()):
                if self._closing:
                    return None
                facts = self._facts(stream, made)
                counts, totals = ([], {}) if self._reporter is None else self._reporter.new_counts(stream)
                renewal = self._renewal(stream, key, facts, counts)
                if not command_sync(client_of(stream), "EVAL", *renewal, stream=stream, group=self._group):
                    return self._taken(stream)
                if self._reporter is not None:
                    self._reporter.confirm(stream, totals)
        finally:
            self._is_renewing = False
        return None

    async def release(self, streams: Sequence[str], call: Call) -> None:
        """Release the name at a stop, and delete the consumer from groups in which nothing is pending for it.

        A successor does not wait for the key to expire, and a deployment leaves no unused consumers behind.
        """
        self._closing = True
        keys = {stream: self._reserved.pop(stream) for stream in streams if stream in self._reserved}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RELEASE_S):
                while self._is_renewing:  # noqa: ASYNC110 - set by another thread
                    await asyncio.sleep(0.01)
                if keys:
                    who = (self._token, self._group, self._consumer_id)
                    commands = [
                        pack("EVAL", LEAVE_GROUP, 3, key, stream, registry_key(stream, self._group), *who)
                        for stream, key in keys.items()
                    ]
                    if self._reporter is not None:
                        commands += [self._last_report(stream, self._reporter) for stream in keys]
                    await call(commands)

    async def _is_ours(self, stream: str, key: str, call: Call) -> bool:
        # Before the call: a start that is cancelled during it must also release the name. The script checks the token.
        self._reserved[stream] = key
        (reply,) = await call([pack("EVAL", *self._renewal(stream, key, self._facts(stream, {}), ()))])
        if isinstance(reply, ResponseError):
            del self._reserved[stream]
            self._go_without(stream)
            return True
        return bool(reply)

    async def _end_liveness_of_the_dead(self, stream: str, call: Call) -> None:
        """Delete the liveness keys of workers on this machine that ended without releasing their name.

        The successor of a killed worker is usually the first to start on the same machine, so other hosts learn of the
        death before the key expires. Best effort: on an error reply the keys stay.
        """
        prefix = liveness_key(stream, self._group, "")
        (found,) = await call([pack("EVAL", HOLDERS, 1, registry_key(stream, self._group), prefix, _MOST_NAMES)])
        if isinstance(found, ResponseError):
            return
        for name, holder in zip(found[::2], found[1::2], strict=True):
            if has_ended(text(holder)):
                await call([pack("EVAL", RELEASE_NAME, 1, prefix.encode() + name, holder)])

    def _renewal(self, stream: str, key: str, facts: bytes, counts: Sequence[str | int]) -> tuple[Any, ...]:
        """Return the EVAL arguments that reserve the name or renew the reservation."""
        keys = key, registry_key(stream, self._group)
        who = self._token, LIVENESS_TTL_MS, self._consumer_id
        if self._reporter is None:
            return RESERVE_NAME, 2, *keys, *who
        report = workers_key(stream, self._group), deploys_key(stream), history_base(stream, self._group)
        return RENEW_NAME, 5, *keys, *report, *who, facts, self._reporter.unmarked_version(stream), *counts

    def _facts(self, stream: str, made: dict[Sequence[ConnectionId], bytes]) -> bytes:
        """Return the worker report as JSON, empty without a reporter. ``made`` caches the reports of this round."""
        if self._reporter is None:
            return b""
        known = self._connections[stream]()
        connections = tuple(one for one in known if one is not None)
        if connections not in made:
            made[connections] = self._reporter.facts(connections)
        return made[connections]

    def _last_report(self, stream: str, reporter: WorkerReporter) -> bytes:
        keys = workers_key(stream, self._group), history_base(stream, self._group)
        return pack("EVAL", RECORD_LAST, 2, *keys, self._consumer_id, *reporter.new_counts(stream)[0])

    def _go_without(self, stream: str) -> None:
        logger.warning(
            "the consumer name cannot be reserved: the server refuses the key. Two engines of one name go unnoticed",
            stream=printable(stream),
            group=self._group,
        )

    def _taken(self, stream: str) -> QueueError:
        return QueueError(
            f"another live engine is consumer {printable(self._consumer_id)!r} of group {printable(self._group)!r} on "
            f"stream {printable(stream)!r}; two under one name would run each other's messages. Give each engine a "
            "consumer_id of its own: in containers host names and process ids repeat",
            stream=stream,
            group=self._group,
        )
