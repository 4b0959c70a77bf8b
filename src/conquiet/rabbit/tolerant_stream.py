"""A connection on which the properties of a message are read by us, also where pika puts the message together.

That is the case for what is fetched and for what is returned. pika decodes the properties while it reads the frame, and
one header that it cannot read would end the connection, with every message behind it out of reach.
"""

from struct import Struct
from typing import Any, Final

from pika import frame as pika_frames
from pika import spec

from conquiet.rabbit.properties import Properties
from conquiet.rabbit.stream import Stream

_OVERHEAD: Final = spec.FRAME_HEADER_SIZE + spec.FRAME_END_SIZE
_header = Struct(">BHIHHQ")


class TolerantStream(Stream):
    """One AMQP connection; no property of any message can end it."""

    def _read_frame(self) -> tuple[int, Any]:
        return read_frame(self._frame_buffer)


def read_frame(data: bytes) -> tuple[int, Any]:
    """Do as pika's ``decode_frame``, but leave the properties of a message undecoded."""
    if len(data) < _header.size or data[0] != spec.FRAME_HEADER:
        return pika_frames.decode_frame(data)  # type: ignore[no-any-return]  # pika has no types
    _, channel, size, _, _, body_size = _header.unpack_from(data)
    end = _OVERHEAD + size
    if end > len(data):
        return 0, None
    if data[end - 1] != spec.FRAME_END:
        return pika_frames.decode_frame(data)  # type: ignore[no-any-return]  # which says what is wrong with it
    return end, pika_frames.Header(channel, body_size, Properties(data[_header.size : end - 1]))
