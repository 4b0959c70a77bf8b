"""The adapter between asyncio and pika, without a broker, and the internals of pika that it uses.

A release of pika that changes one of these internals fails here first. pika's Twisted adapter uses the same ones, so
they do not change lightly.
"""

import inspect
from typing import Any

import pika
import pytest
from pika import frame as pika_frames
from pika import spec
from pika.connection import Connection

from conquiet.rabbit.amqp_connection import AmqpConnection


def a_delivery(tag: int) -> bytes:
    frames = [
        pika_frames.Method(1, spec.Basic.Deliver("tag", tag, False, "", "q")),  # noqa: FBT003 - pika's order
        pika_frames.Header(1, 2, spec.BasicProperties()),
        pika_frames.Body(1, b"{}"),
    ]
    return b"".join(frame.marshal() for frame in frames)


class Wire:
    """Replaces asyncio's transport; records the written bytes."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.aborted = False

    def get_extra_info(self, _name: str) -> Any:
        return None

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.aborted = True


def a_stream() -> tuple[AmqpConnection, Wire, list[Any]]:
    errors: list[Any] = []
    stream = AmqpConnection(pika.ConnectionParameters(), on_open_error_callback=lambda _, error: errors.append(error))
    wire = Wire()
    stream.connection_made(wire)
    return stream, wire, errors


HINT = f"pika {pika.__version__} has changed inside: see rabbit/amqp_connection.py; pin an older pika until then"


class Quiet(Connection):  # type: ignore[misc]  # pika has no types
    """A connection without a transport: it records the calls that pika makes to its adapter."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.opened_with: list[Any] = []
        super().__init__(
            pika.ConnectionParameters(heartbeat=5),
            on_open_error_callback=lambda _, error: self.opened_with.append(error),
            internal_connection_workflow=False,
        )

    def _adapter_call_later(self, delay: float, callback: Any) -> Any:
        self.asked.append(("later", delay, callback))

    def _adapter_remove_timeout(self, timeout_id: Any) -> None:
        self.asked.append("remove")

    def _adapter_add_callback_threadsafe(self, callback: Any) -> None:
        self.asked.append("threadsafe")

    def _adapter_connect_stream(self) -> None:
        self.asked.append("connect")

    def _adapter_disconnect_stream(self) -> None:
        self.asked.append("disconnect")

    def _adapter_emit_data(self, data: bytes) -> None:
        self.asked.append(data)


async def test_every_byte_that_comes_in_counts_as_a_sign_of_life() -> None:
    """Heartbeats read this number: under load the broker sends none, and deliveries prove that it lives."""
    stream, _, _ = a_stream()
    runs: list[list[Any]] = []
    stream.take_deliveries(1, runs.append)
    stream_of_bytes = a_delivery(1) + a_delivery(2)

    stream.data_received(stream_of_bytes[:10])
    assert (stream.bytes_received, runs) == (10, [])
    stream.data_received(stream_of_bytes[10:])

    assert stream.bytes_received == len(stream_of_bytes)
    assert [[arrival[0] for arrival in run] for run in runs] == [[1, 2]]


async def test_bytes_that_pika_had_begun_to_read_are_kept() -> None:
    stream, _, _ = a_stream()
    runs: list[list[Any]] = []
    delivery = a_delivery(7)

    stream.data_received(delivery[:5])
    stream.take_deliveries(1, runs.append)
    stream.data_received(delivery[5:])

    assert [[arrival[0] for arrival in run] for run in runs] == [[7]]


async def test_sent_bytes_and_frames_are_counted() -> None:
    stream, wire, _ = a_stream()
    before = (stream.bytes_sent, stream.frames_sent)

    stream.emit(b"12345", 2)

    assert wire.written[-1] == b"12345"
    assert (stream.bytes_sent, stream.frames_sent) == (before[0] + 5, before[1] + 2)


async def test_a_connection_that_cannot_be_read_ends_without_raising() -> None:
    """Raised out of a protocol it would be an uncaught error of the loop, which ends the process."""
    stream, wire, errors = a_stream()
    stream.take_deliveries(1, lambda _: None)

    stream.data_received(b"\x01\0\0\0\0\0\0X")
    assert wire.aborted
    stream.connection_lost(None)

    assert [type(error).__name__ for error in errors] == ["IncompatibleProtocolError"]


def test_these_are_all_the_methods_an_adapter_has_to_bring() -> None:
    expected = {name for name in vars(Quiet) if name.startswith("_adapter_")}

    assert expected == Connection.__abstractmethods__, HINT


def test_the_handshake_begins_only_when_the_transport_is_there() -> None:
    connection = Quiet()

    assert connection.asked == [], HINT
    connection._on_stream_connected()
    assert connection.asked == [b"AMQP\x00\x00\x09\x01"], HINT
    assert (connection.bytes_sent, connection.frames_sent) == (8, 1), HINT


def test_frames_are_counted_and_handed_on_one_by_one() -> None:
    connection = Quiet()
    connection._on_stream_connected()
    start = spec.Connection.Start(0, 9, {}, "PLAIN", "en_US")
    _, frame = pika_frames.decode_frame(pika_frames.Method(0, start).marshal())

    connection._process_frame(frame)

    assert connection.frames_received == 1, HINT
    assert pika_frames.decode_frame(connection.asked[-1])[1].method.NAME == "Connection.StartOk", HINT


def test_less_than_a_frame_is_kept_in_the_frame_buffer() -> None:
    connection = Quiet()
    connection._on_stream_connected()
    begun = pika_frames.Heartbeat().marshal()[:5]

    connection._on_data_available(begun)

    assert connection._frame_buffer == begun, HINT
    assert connection.bytes_received == 0, HINT


def test_every_frame_is_read_in_a_place_of_its_own() -> None:
    connection = Quiet()
    connection._on_stream_connected()
    connection._read_frame = lambda: (0, None)

    connection._on_data_available(pika_frames.Heartbeat().marshal())

    assert connection.frames_received == 0, HINT


def test_the_heartbeat_check_reads_the_bytes_that_came_in() -> None:
    source = inspect.getsource(pika.heartbeat.HeartbeatChecker.bytes_received_on_connection.fget)

    assert "self._connection.bytes_received" in source, HINT


def test_a_connection_that_ends_calls_its_close_callback() -> None:
    connection, error = Quiet(), pika.exceptions.StreamLostError("gone")

    connection._terminate_stream(error)
    assert connection.asked == ["disconnect"], HINT
    connection._on_stream_terminated(None)

    assert connection.opened_with == [error], HINT
    assert connection.is_closed


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((spec.FRAME_METHOD, spec.FRAME_HEADER, spec.FRAME_BODY, spec.FRAME_END), (1, 2, 3, 0xCE)),
        ((spec.FRAME_HEADER_SIZE, spec.FRAME_END_SIZE), (7, 1)),
        ((spec.Basic.Deliver.INDEX, spec.Basic.Ack.INDEX), (0x003C003C, 0x003C0050)),
    ],
)
def test_the_numbers_of_the_protocol_are_where_frames_reads_them(found: Any, expected: Any) -> None:
    assert found == expected, HINT
