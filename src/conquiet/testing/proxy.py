"""A TCP proxy that breaks connections on demand.

It forwards between a client and a server and knows no protocol, so it causes only faults of a network. ``faults``
decides which bytes pass; this module moves them. One thread runs an event loop, and every control
returns only when it has taken effect there, so a test needs no sleep after it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit, urlunsplit

from conquiet.testing.faults import Conversation, Fault, FaultKind, FaultPlan
from conquiet.testing.ports import LOOPBACK, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, Self

T = TypeVar("T")

_CHUNK = 65_536
_CONTROL_TIMEOUT_S = 10.0
_PORT_ATTEMPTS = 5
_ACCEPT_TURNS = 3
"""Turns of the event loop from an accepted connection to the first line of its handler: transport, protocol, task."""
_NOT_RUNNING = "the FaultProxy is not running; use it as a context manager"
# Linger for zero seconds: close() then sends RST instead of FIN and discards unsent data.
_LINGER_ZERO = struct.pack("ii", 1, 0)


class Direction(Flag):
    """Direction of the bytes that a fault of a proxy affects."""

    TO_SERVER = auto()
    TO_CLIENT = auto()
    BOTH = TO_SERVER | TO_CLIENT


class CloseMode(Enum):
    """The way a connection is closed: FIN (the peer reads an end) or RST (the peer gets an error)."""

    FIN = "fin"
    RST = "rst"


@dataclass(frozen=True, slots=True)
class ProxyCounters:
    """Connections, bytes and faults of a proxy so far. A snapshot."""

    connections: int = 0
    open_connections: int = 0
    bytes_to_server: int = 0
    bytes_to_client: int = 0
    faults: int = 0


class _Pair:
    """One client connection and its connection to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.conversation = Conversation()
        self.pumps: list[asyncio.Task[None]] = []

    def close(self, how: CloseMode) -> None:
        for writer in (self.client, self.server):
            if how is CloseMode.RST:
                raw = writer.get_extra_info("socket")
                if raw is not None and raw.fileno() >= 0:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
                writer.transport.abort()
            else:
                writer.close()
        for pump in self.pumps:
            pump.cancel()


class FaultProxy:
    """Forward a loopback port to a server, with faults on demand. A context manager; usable from any thread.

    Args:
        target_host: Host of the server.
        target_port: Port of the server. It is connected once per client, so the server may restart meanwhile.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self._target = (target_host, target_port)
        self._port = 0
        self._plan = FaultPlan()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._listener: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._handlers: set[asyncio.Task[Any]] = set()
        self._flowing = {direction: asyncio.Event() for direction in (Direction.TO_SERVER, Direction.TO_CLIENT)}
        self._moved = {Direction.TO_SERVER: 0, Direction.TO_CLIENT: 0}
        self._connections = 0
        self._delay_s = 0.0

    # ------------------------------------------------------------------ start and stop
    def start(self) -> Self:
        """Listen. Use the proxy as a context manager instead where possible."""
        if self._thread is not None:
            raise RuntimeError("a FaultProxy is started once")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        for event in self._flowing.values():
            event.set()
        self._on_loop(self._listen_somewhere())
        return self

    def stop(self) -> None:
        """Close everything. Idempotent."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or loop.is_closed():
            return
        self._on_loop(self._close_all())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CONTROL_TIMEOUT_S)
        loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------------ addresses and numbers
    @property
    def host(self) -> str:
        """Return the loopback address."""
        return LOOPBACK

    @property
    def port(self) -> int:
        """Return the port to connect to, chosen at the start; it stays the same over refuse and accept."""
        if not self._port:
            raise RuntimeError(_NOT_RUNNING)
        return self._port

    def url_for(self, url: str) -> str:
        """Return the URL with the proxy's address."""
        parts = urlsplit(url)
        login, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{login}{at}{self.host}:{self.port}"))

    @property
    def counters(self) -> ProxyCounters:
        """Return the counters of this proxy."""
        return ProxyCounters(
            connections=self._connections,
            open_connections=len(self._pairs),
            bytes_to_server=self._moved[Direction.TO_SERVER],
            bytes_to_client=self._moved[Direction.TO_CLIENT],
            faults=self._plan.done,
        )

    # ------------------------------------------------------------------ immediate faults
    def disconnect(self, how: CloseMode = CloseMode.RST) -> int:
        """Close all connections now and return their number. New connections are still accepted."""
        return self._now(lambda: self._disconnect(how))

    def refuse(self) -> None:
        """Refuse new connections (ECONNREFUSED). Open connections continue; ``disconnect()`` closes them."""
        self._on_loop(self._close_listener())

    def accept(self) -> None:
        """Accept connections again, on the same port."""
        self._on_loop(self._listen(self._port))

    def stall(self, direction: Direction = Direction.BOTH) -> None:
        """Hold bytes back in this direction. Nothing is lost; ``resume()`` sends them."""
        self._now(lambda: self._let_flow(~direction))

    def resume(self) -> None:
        """End ``stall()`` in both directions."""
        self._now(lambda: self._let_flow(Direction.BOTH))

    def slow(self, delay_s: float) -> None:
        """Delay each chunk, in each direction, by this many seconds; 0 ends it."""
        self._delay_s = delay_s

    # ------------------------------------------------------------------ faults of the next matching chunk
    def drop_next_request(self, matching: bytes | None = None) -> None:
        """Swallow the next request that contains ``matching`` and close its connection. The server never sees it.

        Without ``matching`` it is the next request, which may be a client's greeting.
        """
        self._plan.arm(Fault(FaultKind.DROP_REQUEST, matching))

    def drop_next_reply(self, after_request_matching: bytes | None = None) -> None:
        """Forward the next such request, swallow its reply, close the connection.

        The connection is closed when the reply arrives: the server has carried out the request by then.
        """
        self._plan.arm(Fault(FaultKind.DROP_REPLY, after_request_matching))

    def cut_reply_after(self, n_bytes: int, after_request_matching: bytes | None = None) -> None:
        """Let ``n_bytes`` of a reply through, then close the connection in the middle of it.

        Without ``after_request_matching`` it applies to the next reply bytes on any connection, including pushed ones.
        """
        if n_bytes < 0:
            raise ValueError(f"n_bytes must not be negative, got {n_bytes}")
        on_any_reply = after_request_matching is None
        self._plan.arm(Fault(FaultKind.CUT_REPLY, after_request_matching, n_bytes, on_any_reply=on_any_reply))

    def stall_next_reply(self, after_request_matching: bytes | None = None) -> None:
        """Forward the next such request, then hold back every reply, as ``stall()`` does, until ``resume()``."""
        self._plan.arm(Fault(FaultKind.STALL_REPLY, after_request_matching))

    def disarm(self) -> None:
        """Remove armed faults that have not been applied."""
        self._plan.disarm()

    def wait_for_fault(self, timeout_s: float = 10.0) -> None:
        """Return when every armed fault has been applied.

        Raises:
            TimeoutError: A fault was not applied in time.
        """
        self._plan.wait(timeout_s)

    # ------------------------------------------------------------------ in the loop's thread
    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise RuntimeError(_NOT_RUNNING)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CONTROL_TIMEOUT_S)

    def _now(self, step: Callable[[], T]) -> T:
        async def run() -> T:
            return step()

        return self._on_loop(run())

    def _let_flow(self, open_ways: Direction) -> None:
        for way, event in self._flowing.items():
            if way in open_ways:
                event.set()
            else:
                event.clear()

    async def _listen_somewhere(self) -> None:
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                return await self._listen(free_port())
            except OSError:
                if attempt == _PORT_ATTEMPTS:
                    raise
        return None

    async def _listen(self, port: int) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, LOOPBACK, port, limit=_CHUNK)
            self._port = port

    async def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            await close_listener(listener)

    async def _close_all(self) -> None:
        await self._close_listener()
        self._disconnect(CloseMode.RST, counted=False)
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        # One more turn, in which the transports close their sockets.
        await asyncio.sleep(0)

    def _disconnect(self, how: CloseMode, *, counted: bool = True) -> int:
        pairs = list(self._pairs)
        for pair in pairs:
            pair.close(how)
            if counted:
                self._plan.count_disconnect()
        return len(pairs)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.current_task()
        assert handler is not None  # noqa: S101 - start_server runs us as a task
        self._handlers.add(handler)
        self._connections += 1
        try:
            await self._join(reader, writer)
        except asyncio.CancelledError:
            # Swallowed: only stop() cancels this task, and asyncio would report a cancelled handler as an error.
            pass
        finally:
            self._handlers.discard(handler)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection(*self._target, limit=_CHUNK)
        except OSError:
            return  # the server is down: the client sees its connection end
        pair = _Pair(writer, to_server)
        self._pairs.add(pair)
        pair.pumps = [
            asyncio.ensure_future(self._pump(pair, reader, Direction.TO_SERVER)),
            asyncio.ensure_future(self._pump(pair, from_server, Direction.TO_CLIENT)),
        ]
        try:
            await asyncio.gather(*pair.pumps, return_exceptions=True)
        finally:
            self._pairs.discard(pair)
            self._plan.abandoned(pair.conversation)
            pair.close(CloseMode.FIN)

    async def _pump(self, pair: _Pair, reader: asyncio.StreamReader, way: Direction) -> None:
        """Move chunks in one direction until the sender ends, a fault is applied or the connection breaks."""
        to_server = way is Direction.TO_SERVER
        writer = pair.server if to_server else pair.client
        decide = self._plan.on_request if to_server else self._plan.on_reply
        try:
            while chunk := await reader.read(_CHUNK):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                # Decided after the wait: a fault that is armed during a stall applies to the bytes held back by it.
                await self._flowing[way].wait()
                decision = decide(pair.conversation, chunk)
                if decision.stall:  # before the request is forwarded: the reply must not arrive first
                    self._flowing[Direction.TO_CLIENT].clear()
                if decision.forward:
                    # Counted first: a test that has read the bytes may read the counters immediately.
                    self._moved[way] += len(decision.forward)
                    writer.write(decision.forward)
                    await writer.drain()
                if decision.close:
                    pair.close(CloseMode.FIN)
                    return
            await self._flowing[way].wait()
            writer.write_eof()  # half-close only: the peer may still send
        except OSError:
            pair.close(CloseMode.RST)  # pass the reset on


async def close_listener(listener: asyncio.Server) -> None:
    """Accept no more connections. The handlers of accepted connections run when this returns.

    asyncio leaves a connection open and unserved that it has accepted in the turn in which the listener closes
    (Server._attach fails). Its client would wait without end. So accept no more, serve those, then close.
    """
    for each in listener.sockets:
        asyncio.get_running_loop().remove_reader(each.fileno())
    for _ in range(_ACCEPT_TURNS):
        await asyncio.sleep(0)
    # Not wait_closed(): from Python 3.12 on it also waits for the connections, which may continue.
    listener.close()
