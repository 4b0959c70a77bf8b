"""The client library's connection on an asyncio transport, with an own reader for deliveries.

pika keeps the handshake, the heartbeats, the channel and everything that is asked and answered. Its own asyncio adapter
is replaced for two reasons: it registers with the selector before each write and sends one turn of the loop later, and
it cannot be extended to read deliveries and properties. The model is pika's Twisted adapter, which sits on a
foreign transport in the same way. ``tests/unit/rabbit/test_amqp_connection.py``
checks what is used of pika's internals.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from pika import exceptions as amqp
from pika import spec, tcp_socket_opts
from pika.connection import Connection

from conquiet.core.log import FactLogger
from conquiet.rabbit.frames import Arrival, FrameCutter, read_frame

logger = FactLogger(__name__)

OnArrivals = Callable[[list[Arrival]], None]


class AmqpConnection(Connection, asyncio.Protocol):  # type: ignore[misc]  # pika has no types
    """One AMQP connection over one transport. :meth:`connect` starts it; pika's callbacks report what follows.

    No property of any message can end it.
    """

    _frame_buffer: bytes

    def __init__(self, parameters: Any, **callbacks: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._got_eof = False
        self._cutter: FrameCutter | None = None
        self._on_arrivals: OnArrivals = lambda _: None
        super().__init__(parameters, internal_connection_workflow=False, **callbacks)

    async def connect(self) -> None:
        """Connect, with TLS where the parameters ask for it. The AMQP handshake follows by itself.

        Raises:
            OSError: No server, or (as ``ssl.SSLError``) one whose certificate is refused.
        """
        parameters, tls = self.params, self.params.ssl_options
        await self._loop.create_connection(
            lambda: self,
            parameters.host,
            parameters.port,
            ssl=None if tls is None else tls.context,
            server_hostname=None if tls is None else tls.server_hostname,
        )

    def take_deliveries(self, channel: int, on_arrivals: OnArrivals) -> None:
        """From now on read the deliveries of a channel ourselves; pika gets every other frame."""
        self._on_arrivals = on_arrivals
        self._cutter = FrameCutter(channel, self.params.frame_max)
        begun, self._frame_buffer = self._frame_buffer, b""
        self._cutter.feed(begun)  # less than a frame: pika keeps nothing that is complete

    def emit(self, frames: bytes, number: int) -> None:
        """Send frames that are packed already."""
        self.bytes_sent += len(frames)
        self.frames_sent += number
        self._adapter_emit_data(frames)

    def drop(self) -> None:
        """End the transport at once, without the closing handshake."""
        self._terminate_stream(amqp.StreamLostError("dropped by a forced stop"))

    # -------------------------------------------------------------- called by asyncio
    def connection_made(self, transport: Any) -> None:
        """Begin the AMQP handshake."""
        self._transport = transport
        tcp_socket_opts.set_sock_opts(self.params.tcp_options, transport.get_extra_info("socket"))
        self._on_stream_connected()

    def data_received(self, data: bytes) -> None:
        """Read what came. A connection that cannot be read ends; nothing is raised."""
        try:
            if self._cutter is None:
                self._on_data_available(data)
            else:
                self._read(self._cutter.feed(data), len(data))
        except Exception as error:  # noqa: BLE001 - whatever it is, the byte stream is out of step
            logger.error("what the broker sent could not be handled", error=type(error).__name__)  # noqa: TRY400 - its text may quote a frame
            self._terminate_stream(amqp.StreamLostError(type(error).__name__))

    def eof_received(self) -> None:
        """Remember that the broker hung up. The transport closes itself."""
        self._got_eof = True

    def connection_lost(self, error: Exception | None) -> None:
        """Notify pika, which calls its callbacks."""
        self._transport = None
        if error is not None:
            error = amqp.StreamLostError(type(error).__name__)
        elif self._got_eof:
            error = amqp.StreamLostError("Transport indicated EOF")
        if not self.is_closed:
            self._on_stream_terminated(error)

    # -------------------------------------------------------------- called by pika
    def _adapter_call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay, callback)

    def _adapter_remove_timeout(self, timeout_id: asyncio.TimerHandle) -> None:
        timeout_id.cancel()

    def _adapter_add_callback_threadsafe(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(callback)

    def _adapter_connect_stream(self) -> None:
        raise NotImplementedError  # never called: internal_connection_workflow is off

    def _adapter_disconnect_stream(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        else:  # not connected yet: no transport would report the end
            self._loop.call_soon(self.connection_lost, None)

    def _adapter_emit_data(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _read_frame(self) -> tuple[int, Any]:
        return read_frame(self._frame_buffer)

    # -------------------------------------------------------------- inside
    def _read(self, parts: list[list[Arrival] | bytes], received: int) -> None:
        # Also what is not a whole frame yet counts: heartbeats ask whether anything came at all.
        self.bytes_received += received
        for part in parts:
            if isinstance(part, list):
                self.frames_received += len(part)
                self._on_arrivals(part)
            else:
                _, frame = read_frame(part)
                self._process_frame(frame)


class RawProperties:
    """What pika asks of properties when it sends them."""

    __slots__ = ("_raw",)

    INDEX: Final = spec.BasicProperties.INDEX

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def encode(self) -> list[bytes]:
        """Return the properties as they are sent."""
        return [self._raw]
