"""Connections between simulated processes and the model of a server, below the engine's own protocol.

The engine's ``AsyncRedisConnection`` and ``RedisProtocol`` run unchanged: they write bytes to a transport of this
module and are given bytes by it. A seed decides how long a request and a reply take, which of them is lost together
with its connection, and when a process is cut off from the server.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import redis.exceptions
from redis._parsers.base import BaseParser
from tests.simulation.event_loop import CURRENT, Process, SimulatedLoop
from tests.simulation.redis_model import RedisModel, Refusal, encode, parse_commands

TIMEOUT_S = 3.0


class Network:
    """All connections to one server.

    Args:
        loop: The virtual time.
        model: The server.
        rng: Decides delays and losses.
        note: Called with what happens: ``note(op, **fields)``.
    """

    def __init__(self, loop: SimulatedLoop, model: RedisModel, rng: random.Random, note: Callable[..., None]) -> None:
        self.loop, self.model, self.rng, self.note = loop, model, rng, note
        self.loss = 0.0
        self.slow = 0.0
        self.connections: list[SimulatedTransport] = []
        self._number = 0
        self.context = copy_context()
        """The server's end: bytes that were sent before a kill still arrive."""
        self.context.run(CURRENT.set, None)

    def delay_s(self) -> float:
        """Return how long one way takes: mostly half a millisecond, sometimes seconds."""
        if self.rng.random() < self.slow:
            delay_s = self.rng.uniform(0.05, 2.0)
            # A reply that is late by more than the claim threshold: another engine may take the message over.
            self.note("fault", kind="delay", scope="server", until=round(self.loop.time() - 1_000.0 + delay_s, 6))
            return delay_s
        return self.rng.uniform(0.0001, 0.001)

    def lost(self, process: Process, kind: str) -> bool:
        """Decide whether this request or reply is lost."""
        if self.rng.random() >= self.loss:
            return False
        self.note("fault", kind=kind, target=process.name)
        return True

    def open(self, process: Process) -> "SimulatedTransport":
        """Open a connection of a process."""
        self._number += 1
        made = SimulatedTransport(self, process, self._number)
        self.connections.append(made)
        process.endings.append(made.vanish)
        return made

    def run(self, connection: "SimulatedTransport", words: list[bytes]) -> Any:
        """Carry out a command of a connection."""
        name = words[0].upper()
        if name == b"CLIENT":
            if words[1].upper() == b"ID":
                return connection.number
            blocked = next((one for one in self.connections if b"%d" % one.number == words[2]), None)
            return 0 if blocked is None else int(blocked.unblock())
        self.note("command", name=name.decode(), of=connection.process.name, keys=_named(words))
        reply = self.model.execute(words)
        if name == b"XADD":
            self.wake()
        return reply

    def wake(self) -> None:
        """Let blocked reads check again: something was added."""
        for one in self.connections:
            one.look_again()

    def cut(self, process: Process | None = None) -> None:
        """Close the connections of a process, or of all."""
        for one in list(self.connections):
            if process is None or one.process is process:
                one.lose(ConnectionResetError("reset"))


def _named(words: list[bytes]) -> str:
    """Return the trace of a command: without scripts and tokens, which differ from run to run."""
    if words[0].upper() == b"EVAL":
        return f"{len(words[1])} {words[3].decode()} {len(words)}"
    return b" ".join(words[1:]).decode(errors="replace")[:120]


class SimulatedTransport:
    """One connection: bytes of the client in, bytes of the server out, each in order."""

    def __init__(self, network: Network, process: Process, number: int) -> None:
        self.process, self.number = process, number
        self._network = network
        self._protocol: Any = None
        self._closed = False
        self._rest = b""
        self._queue: deque[list[bytes]] = deque()
        self._blocked: tuple[list[bytes], float] | None = None
        self._arrives = self._returns = 0.0
        self._timer: Any = None

    # ------------------------------------------------------------ as asyncio's transports
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See ``asyncio.BaseTransport``."""
        return ("127.0.0.1", 6379) if name == "peername" else default

    def set_protocol(self, protocol: Any) -> None:
        """See ``asyncio.BaseTransport``."""
        self._protocol = protocol

    def is_closing(self) -> bool:
        """See ``asyncio.BaseTransport``."""
        return self._closed

    def write(self, data: bytes) -> None:
        """Send bytes: they arrive later, or are lost with the connection."""
        if self._closed or not self.process.is_alive:
            return
        loop = self._network.loop
        if self._network.lost(self.process, "request lost"):
            self.lose(ConnectionResetError("reset"))
            return
        self._arrives = max(self._arrives, loop.time()) + self._network.delay_s()
        loop.call_at(self._arrives, self._receive, data, context=self._network.context)

    def abort(self) -> None:
        """Close immediately."""
        self.lose(None)

    # ------------------------------------------------------------ the server's side
    def _receive(self, data: bytes) -> None:
        # Bytes that were sent before a kill or a close still arrive.
        commands, self._rest = parse_commands(self._rest + data)
        self._queue.extend(commands)
        self._serve()

    def _serve(self) -> None:
        while self._queue and self._blocked is None:
            words = self._queue.popleft()
            reply = self._network.run(self, words)
            if reply is None and words[0].upper() == b"XREADGROUP" and (wait_ms := _block_ms(words)):
                if self._closed:
                    continue
                self._blocked = (words, self._network.loop.time() + wait_ms / 1000)
                loop = self._network.loop
                self._timer = loop.call_later(wait_ms / 1000, self.unblock, context=self._network.context)
                return
            self._answer(reply)

    def look_again(self) -> None:
        """Repeat a blocked read."""
        if self._blocked is not None:
            words, _ = self._blocked
            reply = self._network.run(self, words)
            if reply is not None:
                self._unblock_with(reply)

    def unblock(self) -> bool:
        """End a blocked read with nothing. Returns whether there was one."""
        if self._blocked is None:
            return False
        self._unblock_with(None)
        return True

    def _unblock_with(self, reply: Any) -> None:
        self._blocked = None
        self._timer.cancel()
        self._answer(reply)
        self._serve()

    def _answer(self, reply: Any) -> None:
        if self._closed or not self.process.is_alive:
            return
        if self._network.lost(self.process, "reply lost"):
            self.lose(ConnectionResetError("reset"))
            return
        loop = self._network.loop
        self._returns = max(self._returns, loop.time()) + self._network.delay_s()
        loop.call_in(self.process, self._returns - loop.time(), self._deliver, encode(reply))

    def _deliver(self, data: bytes) -> None:
        if not self._closed and self._protocol is not None:
            self._protocol.data_received(data)

    def lose(self, error: Exception | None) -> None:
        """Break the connection; the client notices a moment later."""
        if self._closed:
            return
        self.vanish()
        if self._protocol is not None:
            self._network.loop.call_in(self.process, 0.0, self._protocol.connection_lost, error)

    def vanish(self) -> None:
        """Forget the connection, as the server does when its client is gone."""
        self._closed = True
        self._blocked = None
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self in self._network.connections:
            self._network.connections.remove(self)


def _block_ms(words: list[bytes]) -> int:
    upper = [word.upper() for word in words]
    return int(words[upper.index(b"BLOCK") + 1]) if b"BLOCK" in upper else 0


class _Writer:
    def __init__(self, transport: SimulatedTransport) -> None:
        self.transport = transport


class _Reader:
    def at_eof(self) -> bool:
        return False


class SimulatedConnection:
    """The part of redis-py's connection that ``RedisProtocol`` uses."""

    socket_timeout = TIMEOUT_S
    _parser = BaseParser
    _reader = _Reader()

    def __init__(self, network: Network, process: Process) -> None:
        self._network, self._process = network, process
        self._writer: Any = None

    async def connect(self) -> None:
        """Open it, unless the server cannot be reached."""
        await asyncio.sleep(self._network.delay_s())
        if self._network.lost(self._process, "connection refused"):
            raise redis.exceptions.ConnectionError("refused")
        self._writer = _Writer(self._network.open(self._process))

    async def disconnect(self, *, nowait: bool = False) -> None:
        """Close it."""
        del nowait
        if self._writer is not None:
            self._writer.transport.abort()


class SimulatedClient(redis.Redis):
    """The synchronous client of the heartbeat: calls take no time, and may fail before or after they took effect."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network, self._process = network, process
        self._calls: list[list[bytes]] = []

    def execute_command(self, *words: Any) -> Any:
        """Send a command; in a pipeline, later."""
        packed = [_bytes(word) for word in words]
        if self._calls is not _NO_PIPELINE:
            self._calls.append(packed)
            return None
        (reply,) = self._send([packed])
        if isinstance(reply, redis.exceptions.ResponseError):
            raise reply
        return reply

    @contextmanager
    def pipeline(self, *, transaction: bool = False) -> Iterator["SimulatedClient"]:  # type: ignore[override]
        """Collect calls."""
        del transaction
        made = SimulatedClient(self._network, self._process)
        yield made

    def execute(self, *, raise_on_error: bool = False) -> list[Any]:
        """Send the collected calls."""
        del raise_on_error
        calls, self._calls = self._calls, []
        return self._send(calls)

    def _send(self, calls: list[list[bytes]]) -> list[Any]:
        if self._network.lost(self._process, "request lost"):
            raise redis.exceptions.ConnectionError("lost")
        replies = [self._network.model.execute(words) for words in calls]
        for words in calls:
            self._network.note("command", name=words[0].decode(), of=self._process.name, keys=_named(words))
        if self._network.lost(self._process, "reply lost"):
            raise redis.exceptions.ConnectionError("lost")
        return [redis.exceptions.ResponseError(str(one)) if isinstance(one, Refusal) else one for one in replies]


_NO_PIPELINE: list[list[bytes]] = []


def _bytes(word: Any) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()


class SimulatedTopology:
    """The topology: all streams are on the model."""

    may_move = False

    def __init__(self, network: Network, process: Process) -> None:
        self._network, self._process = network, process
        self._client = SimulatedClient(network, process)
        self._client._calls = _NO_PIPELINE

    def split_by_node(self, streams: Any) -> list[tuple[str, ...]]:
        """See ``Topology``."""
        return [tuple(streams)]

    async def connection(self, stream: str) -> SimulatedConnection:
        """See ``Topology``."""
        del stream
        return SimulatedConnection(self._network, self._process)

    def client(self, stream: str) -> Any:
        """See ``Topology``."""
        del stream
        return self._client

    def refresh(self) -> None:
        """See ``Topology``."""

    def abort(self) -> None:
        """See ``Topology``."""

    async def close(self) -> None:
        """See ``Topology``."""
