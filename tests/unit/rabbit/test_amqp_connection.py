"""Between asyncio and pika, without a broker: what came in is counted, and nothing falls between the two."""

from typing import Any

import pika
from pika import frame as pika_frames
from pika import spec

from conquiet.rabbit.amqp_connection import AmqpConnection


def a_delivery(tag: int) -> bytes:
    frames = [
        pika_frames.Method(1, spec.Basic.Deliver("tag", tag, False, "", "q")),  # noqa: FBT003 - pika's order
        pika_frames.Header(1, 2, spec.BasicProperties()),
        pika_frames.Body(1, b"{}"),
    ]
    return b"".join(frame.marshal() for frame in frames)


class Wire:
    """What asyncio would give us; notes what is written."""

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


async def test_every_byte_that_comes_in_counts_as_a_sign_of_life() -> None:
    """Heartbeats look at this number: under load the broker sends none, and the deliveries are the sign of life."""
    stream, _, _ = a_stream()
    runs: list[list[Any]] = []
    stream.take_deliveries(1, runs.append)
    stream_of_bytes = a_delivery(1) + a_delivery(2)

    stream.data_received(stream_of_bytes[:10])
    assert (stream.bytes_received, runs) == (10, [])
    stream.data_received(stream_of_bytes[10:])

    assert stream.bytes_received == len(stream_of_bytes)
    assert [[arrival[0] for arrival in run] for run in runs] == [[1, 2]]


async def test_what_pika_had_begun_to_read_is_taken_over() -> None:
    stream, _, _ = a_stream()
    runs: list[list[Any]] = []
    delivery = a_delivery(7)

    stream.data_received(delivery[:5])
    stream.take_deliveries(1, runs.append)
    stream.data_received(delivery[5:])

    assert [[arrival[0] for arrival in run] for run in runs] == [[7]]


async def test_what_is_sent_is_counted_as_well() -> None:
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
