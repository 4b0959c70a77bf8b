"""conquiet reads deliveries as the client library does, for any content and any cut of the frames."""

import struct
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pika import frame as pika_frames
from pika import spec
from pika.channel import ContentFrameAssembler

from conquiet.rabbit.frames import Arrival, BrokenStreamError, FrameCutter, pack_acks, pack_reject
from conquiet.rabbit.properties import Properties

CHANNEL = 1

# Every type of a field that pika can write; what only others write is in test_properties.py.
short_text = st.text(max_size=20).filter(lambda text: len(text.encode("utf-8", "ignore")) <= 60)
field_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.binary(max_size=20)
    | st.text(max_size=20)
    | st.datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1)).map(lambda when: when.replace(microsecond=0, tzinfo=UTC))  # noqa: DTZ001
    | st.decimals(-1000, 1000, places=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(short_text, inner, max_size=3),
    max_leaves=6,
)
properties = st.builds(
    spec.BasicProperties,
    content_type=st.none() | st.just("application/json"),
    headers=st.none() | st.dictionaries(short_text, field_values, max_size=4),
    delivery_mode=st.none() | st.just(2),
    priority=st.none() | st.integers(0, 9),
    message_id=st.none() | short_text,
    expiration=st.none() | st.just("1000"),
)


def deliver(
    tag: int, props: spec.BasicProperties, body: bytes, *, redelivered: bool = False, piece: int = 100
) -> bytes:
    """Return the frames of a delivery as the broker would send them, its body in pieces of that size."""
    method = spec.Basic.Deliver("some.tag", tag, redelivered, "an exchange", "a.routing.key")
    frames = [pika_frames.Method(CHANNEL, method), pika_frames.Header(CHANNEL, len(body), props)]
    frames += [pika_frames.Body(CHANNEL, body[at : at + piece]) for at in range(0, len(body), piece)]
    return b"".join(frame.marshal() for frame in frames)


def other_frames() -> st.SearchStrategy[bytes]:
    """Frames that are pika's: with content or without, on our channel or not."""
    returned = [
        pika_frames.Method(CHANNEL, spec.Basic.Return(312, "NO_ROUTE", "", "q")),
        pika_frames.Header(CHANNEL, 3, spec.BasicProperties()),
        pika_frames.Body(CHANNEL, b"abc"),
    ]
    return st.sampled_from(
        [
            pika_frames.Heartbeat().marshal(),
            pika_frames.Method(CHANNEL, spec.Basic.Ack(7, multiple=True)).marshal(),
            pika_frames.Method(CHANNEL, spec.Basic.Cancel("some.tag")).marshal(),
            pika_frames.Method(0, spec.Connection.Blocked("low on memory")).marshal(),
            b"".join(frame.marshal() for frame in returned),
        ]
    )


deliveries = st.builds(
    deliver,
    st.integers(1, 2**63),
    properties,
    st.binary(max_size=350),
    redelivered=st.booleans(),
    piece=st.sampled_from([1, 7, 100, 1000]),
)


def by_pika(stream: bytes) -> list[Any]:
    """Read a whole stream with pika's own code: deliveries as tuples, other frames by the name of their method."""
    assembler, seen = ContentFrameAssembler(), []
    while stream:
        used, frame = pika_frames.decode_frame(stream)
        stream = stream[used:]
        if isinstance(frame, pika_frames.Method) and not spec.has_content(frame.method.INDEX):
            seen.append(frame.method.NAME)
        elif isinstance(frame, pika_frames.Heartbeat):
            seen.append("Heartbeat")
        elif (content := assembler.process(frame)) is not None:
            method, header, body = content
            if isinstance(method.method, spec.Basic.Deliver):
                props = header.properties
                tag, redelivered = method.method.delivery_tag, method.method.redelivered
                seen.append((tag, redelivered, in_utc(props.headers), props.message_id, body))
            else:
                seen.append(method.method.NAME)
    return seen


def in_utc(value: Any) -> Any:
    """Give times their zone; pika 1.3 reads them without one."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC)
    if isinstance(value, dict):
        return {name: in_utc(inner) for name, inner in value.items()}
    return [in_utc(inner) for inner in value] if isinstance(value, list) else value


def by_us(pieces: list[bytes]) -> list[Any]:
    """Read the pieces with ours, and what it hands on with pika's."""
    cutter, seen = FrameCutter(CHANNEL), []
    handed_on = b""
    for piece in pieces:
        for part in cutter.feed(piece):
            if isinstance(part, list):
                seen += by_pika(handed_on)
                handed_on = b""
                seen += [
                    (tag, redelivered, Properties(raw).headers, Properties(raw).message_id, body)
                    for tag, redelivered, raw, body in part
                ]
            else:
                handed_on += part
    return seen + by_pika(handed_on)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


@settings(max_examples=100, deadline=None)
@given(st.lists(deliveries | other_frames(), max_size=6), st.lists(st.integers(0, 10_000), max_size=8))
@example([deliver(1, spec.BasicProperties(), b"")], [])
@example([deliver(1, spec.BasicProperties(headers={}, message_id=""), b"x" * 200)], [30, 31, 32])
def test_frames_are_read_as_by_pika_in_the_same_order(frames: list[bytes], places: list[int]) -> None:
    stream = b"".join(frames)

    assert by_us(cut(stream, places)) == by_pika(stream)


def test_a_stream_cut_at_every_single_byte_is_read_all_the_same() -> None:
    props = spec.BasicProperties(headers={"x-death": [{"count": 3}]}, message_id="one")
    stream = (
        deliver(5, props, b"b" * 250, redelivered=True) + pika_frames.Heartbeat().marshal() + deliver(6, props, b"")
    )
    expected = by_pika(stream)

    assert by_us([bytes([byte]) for byte in stream]) == expected
    for place in range(len(stream)):
        assert by_us(cut(stream, [place])) == expected


def test_a_channel_close_within_a_delivery_drops_it_and_is_passed_on() -> None:
    begun = deliver(1, spec.BasicProperties(), b"x" * 200)[:-50]
    begun = begun[: begun.rindex(b"\xce") + 1]  # method, header, the first piece of the body
    close = pika_frames.Method(CHANNEL, spec.Channel.Close(406, "PRECONDITION_FAILED", 60, 80)).marshal()
    cutter = FrameCutter(CHANNEL)

    assert cutter.feed(begun) == []
    assert cutter.feed(close) == [close]
    assert cutter.feed(deliver(2, spec.BasicProperties(), b"later")) == [[(2, False, b"\0\0", b"later")]]


def test_deliveries_that_come_together_are_one_run() -> None:
    stream = b"".join(deliver(tag, spec.BasicProperties(), b"{}") for tag in (1, 2, 3))
    expected: list[Arrival] = [(tag, False, b"\0\0", b"{}") for tag in (1, 2, 3)]

    assert FrameCutter(CHANNEL).feed(stream) == [expected]


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (deliver(1, spec.BasicProperties(), b"{}")[:-1] + b"\0", "end where it should"),
        (
            deliver(1, spec.BasicProperties(), b"ab")[:-10] + pika_frames.Body(CHANNEL, b"abc").marshal(),
            "longer than announced",
        ),
        (struct.pack(">BHI", 3, CHANNEL, 2**31), "larger than agreed"),
    ],
)
def test_bytes_that_are_not_amqp_are_refused_and_not_waited_for(stream: bytes, reason: str) -> None:
    with pytest.raises(BrokenStreamError, match=reason):
        FrameCutter(CHANNEL, frame_max=131_072).feed(stream + b"\0" * 8)


# ------------------------------------------------------------------ what we send
@given(
    st.integers(1, 65_535),
    st.none() | st.integers(1, 2**64 - 1),
    st.lists(st.integers(1, 2**64 - 1), max_size=5).map(tuple),
)
def test_packed_acknowledgements_are_what_pika_would_send(channel: int, up_to: int | None, singles: Any) -> None:
    acks = [] if up_to is None else [spec.Basic.Ack(up_to, multiple=True)]
    acks += [spec.Basic.Ack(tag) for tag in singles]

    assert pack_acks(channel, up_to, singles) == b"".join(pika_frames.Method(channel, ack).marshal() for ack in acks)


@given(st.integers(1, 65_535), st.integers(1, 2**64 - 1), st.booleans())
def test_a_packed_reject_is_what_pika_would_send(channel: int, tag: int, requeue: bool) -> None:  # noqa: FBT001
    theirs = pika_frames.Method(channel, spec.Basic.Reject(tag, requeue=requeue)).marshal()

    assert pack_reject(channel, tag, requeue=requeue) == theirs
