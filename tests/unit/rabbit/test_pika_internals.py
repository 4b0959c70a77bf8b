"""What ``stream`` and ``frames`` use of pika's inside. A release of pika that moves a part of it fails here first.

pika's Twisted adapter stands on the same parts, so they do not change lightly.
"""

import inspect
from typing import Any

import pika
import pytest
from pika import frame as pika_frames
from pika import spec
from pika.connection import Connection

HINT = f"pika {pika.__version__} has changed inside: see rabbit/amqp_connection.py; pin an older pika until then"


class Quiet(Connection):  # type: ignore[misc]  # pika has no types
    """A connection without a transport: it notes what pika asks of its adapter."""

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
