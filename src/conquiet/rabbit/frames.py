"""Read deliveries from the byte stream, and encode acknowledgements. Pure.

AMQP sends a delivery in frames: a method, a header with the properties, and the body in zero or more frames. The client
library creates several objects for each frame, which took more than half of the processor time. So the frames of
deliveries are read here. Every other frame is passed to the library unchanged and in order.

    method ``deliver`` ──▶ header ──▶ body, until it is complete ──▶ an Arrival
            │                            │
            │                            └─ a method frame in between (the channel closes): drop the partial delivery
            └─ any other frame, on any channel: passed on unchanged

See docs/decisions/0020.
"""

from struct import Struct
from typing import Any, Final

from pika import frame as pika_frames
from pika import spec

from conquiet.rabbit.properties import Properties

_METHOD: Final = spec.FRAME_METHOD
_HEADER: Final = spec.FRAME_HEADER
_BODY: Final = spec.FRAME_BODY
_END: Final = spec.FRAME_END
_OVERHEAD: Final = spec.FRAME_HEADER_SIZE + spec.FRAME_END_SIZE
_DELIVER: Final = spec.Basic.Deliver.INDEX
_ACK: Final = spec.Basic.Ack.INDEX
_REJECT: Final = spec.Basic.Reject.INDEX

_head = Struct(">BHI").unpack_from  # type, channel, size of the payload
_index = Struct(">I").unpack_from  # class and method as one number
_tag_and_flag = Struct(">QB").unpack_from
_body_size = Struct(">Q").unpack_from
_content_header = Struct(">BHIHHQ")
_pack_ack = Struct(">BHIIQBB").pack
_ACK_SIZE: Final = 13  # index, tag, flag


Arrival = tuple[int, bool, bytes, bytes]
"""One delivery as received: its tag, the flag ``redelivered``, the encoded properties, the body."""


class BrokenStreamError(Exception):
    """The bytes are not valid AMQP. No later byte can be trusted, so the connection must be closed."""


class FrameCutter:
    """Splits the byte stream of the broker into the deliveries of one channel and all other frames.

    Args:
        channel: The number of the channel to read deliveries from.
        frame_max: The negotiated maximum size of a frame in bytes; 0 for no limit.
    """

    __slots__ = ("_channel", "_frame_max", "_missing", "_pieces", "_properties", "_redelivered", "_rest", "_tag")

    def __init__(self, channel: int, frame_max: int = 0) -> None:
        self._channel = channel
        self._frame_max = frame_max
        self._rest = b""
        # The partial delivery: its tag (0 without one, the broker counts from 1), then its properties, then the number
        # of bytes that its body still lacks.
        self._tag = 0
        self._redelivered = False
        self._properties: bytes | None = None
        self._missing = 0
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> list[list[Arrival] | bytes]:
        """Accept bytes from the socket. Return the complete parts in order: runs of deliveries, and other frames.

        Raises:
            BrokenStreamError: The bytes are not a sequence of frames.
        """
        if self._rest:
            data = self._rest + data
        parts: list[list[Arrival] | bytes] = []
        run: list[Arrival] = []
        mine, position, available = self._channel, 0, len(data)
        while available - position >= _OVERHEAD:
            kind, channel, size = _head(data, position)
            end = position + 7 + size
            if end >= available:
                if self._frame_max and size + _OVERHEAD > self._frame_max:
                    raise BrokenStreamError("a frame is larger than agreed")
                break
            if data[end] != _END:
                raise BrokenStreamError("a frame does not end where it should")
            if channel == mine and self._take(kind, data, position + 7, end, run):
                position = end + 1
                continue
            if run:
                parts.append(run)
                run = []
            parts.append(data[position : end + 1])
            position = end + 1
        if run:
            parts.append(run)
        self._rest = data[position:]
        return parts

    def _take(self, kind: int, data: bytes, start: int, end: int, run: list[Arrival]) -> bool:
        """Read a frame of the channel. Return False if it is not part of a delivery."""
        if kind == _BODY:
            if self._properties is None:
                return False
            if end - start == self._missing and not self._pieces:  # one frame: nearly every message
                self._finish(data[start:end], run)
            else:
                self._take_body(data[start:end], run)
        elif kind == _HEADER:
            if not self._tag or self._properties is not None:
                return False
            (self._missing,) = _body_size(data, start + 4)
            self._properties = data[start + 12 : end]
            if not self._missing:
                self._finish(b"", run)
        else:
            if self._tag:
                self._forget()
            if kind != _METHOD or _index(data, start)[0] != _DELIVER:
                return False
            after_consumer_tag = start + 5 + data[start + 4]
            self._tag, flags = _tag_and_flag(data, after_consumer_tag)
            self._redelivered = flags & 1 == 1
        return True

    def _take_body(self, piece: bytes, run: list[Arrival]) -> None:
        self._missing -= len(piece)
        if self._missing < 0:
            raise BrokenStreamError("a body is longer than announced")
        if self._pieces or self._missing:
            self._pieces.append(piece)
            piece = b"" if self._missing else b"".join(self._pieces)
        if not self._missing:
            self._finish(piece, run)

    def _finish(self, body: bytes, run: list[Arrival]) -> None:
        assert self._properties is not None  # noqa: S101 - only called after the header
        run.append((self._tag, self._redelivered, self._properties, body))
        self._forget()

    def _forget(self) -> None:
        self._tag, self._properties = 0, None
        if self._pieces:
            self._pieces = []


def pack_acks(channel: int, up_to: int | None, singles: tuple[int, ...] = ()) -> bytes:
    """Return the frames that acknowledge all deliveries up to a tag (None: none), then single tags above it."""
    frames = [] if up_to is None else [_pack_ack(_METHOD, channel, _ACK_SIZE, _ACK, up_to, 1, _END)]
    frames += [_pack_ack(_METHOD, channel, _ACK_SIZE, _ACK, tag, 0, _END) for tag in singles]
    return b"".join(frames)


def pack_reject(channel: int, tag: int, *, requeue: bool) -> bytes:
    """Return the frame that rejects one tag. It has the layout of an acknowledgement."""
    return _pack_ack(_METHOD, channel, _ACK_SIZE, _REJECT, tag, requeue, _END)


def read_frame(data: bytes) -> tuple[int, Any]:
    """Decode a frame like pika's ``decode_frame``, but leave the properties of a message undecoded.

    pika assembles fetched and returned messages, and decodes their properties while it reads the frame. One header that
    it cannot decode would end the connection, and the messages behind it could never be read.
    """
    if len(data) < _content_header.size or data[0] != _HEADER:
        return pika_frames.decode_frame(data)  # type: ignore[no-any-return]  # pika has no types
    _, channel, size, _, _, body_size = _content_header.unpack_from(data)
    end = _OVERHEAD + size
    if end > len(data):
        return 0, None
    if data[end - 1] != _END:
        return pika_frames.decode_frame(data)  # type: ignore[no-any-return]  # raises an error with the reason
    return end, pika_frames.Header(channel, body_size, Properties(data[_content_header.size : end - 1]))
