"""Run the client library's connection on an asyncio transport, and read deliveries without pika.

pika still does the handshake, the heartbeats, the channel and all requests with replies. Its asyncio adapter is
replaced for two reasons: it registers with the selector before each write and sends one turn of the loop later, and it
cannot be extended to read deliveries and properties. The model is pika's Twisted adapter, which also runs on a
transport that pika did not create. ``tests/unit/rabbit/test_amqp_connection.py`` checks the internals of pika that are
used here.
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
    """One AMQP connection over one transport. :meth:`connect` starts it; pika's callbacks report its state.

    Malformed properties of a message never close it.
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
        """Connect, with TLS if the parameters require it. The AMQP handshake follows automatically.

        Raises:
            OSError: No server, or (as ``ssl.SSLError``) the server's certificate is refused.
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
        """Read the deliveries of a channel here from now on. pika receives every other frame."""
        self._on_arrivals = on_arrivals
        self._cutter = FrameCutter(channel, self.params.frame_max)
        begun, self._frame_buffer = self._frame_buffer, b""
        self._cutter.feed(begun)  # less than a frame: pika buffers no complete frame

    def emit(self, frames: bytes, number: int) -> None:
        """Send packed frames."""
        self.bytes_sent += len(frames)
        self.frames_sent += number
        self._adapter_emit_data(frames)

    def drop(self, error: amqp.StreamLostError) -> None:
        """Abort the transport, without the closing handshake. ``error`` becomes the reason of the loss."""
        self._terminate_stream(error)

    # -------------------------------------------------------------- called by asyncio
    def connection_made(self, transport: Any) -> None:
        """Begin the AMQP handshake."""
        self._transport = transport
        tcp_socket_opts.set_sock_opts(self.params.tcp_options, transport.get_extra_info("socket"))
        self._on_stream_connected()

    def data_received(self, data: bytes) -> None:
        """Read received bytes. If they cannot be read, the connection ends; no error is raised."""
        try:
            if self._cutter is None:
                self._on_data_available(data)
            else:
                self._read(self._cutter.feed(data), len(data))
        except Exception as error:  # noqa: BLE001 - after any error the position in the byte stream is unknown
            logger.error("what the broker sent could not be handled", error=type(error).__name__)  # noqa: TRY400 - its text may quote a frame
            self._terminate_stream(amqp.StreamLostError(type(error).__name__))

    def eof_received(self) -> None:
        """Record that the broker closed the connection. The transport closes automatically."""
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
        # A part of a frame counts too: the heartbeat check needs to know whether any byte has arrived.
        self.bytes_received += received
        for part in parts:
            if isinstance(part, list):
                self.frames_received += len(part)
                self._on_arrivals(part)
            else:
                _, frame = read_frame(part)
                self._process_frame(frame)


class RawProperties:
    """Encoded properties, with the interface that pika needs to send them."""

    __slots__ = ("_raw",)

    INDEX: Final = spec.BasicProperties.INDEX

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def encode(self) -> list[bytes]:
        """Return the encoded properties."""
        return [self._raw]
