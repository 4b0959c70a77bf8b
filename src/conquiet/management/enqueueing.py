"""Putting payloads into a stream from outside: in batches, all or none of each, without touching any group."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from conquiet.errors import PayloadError
from conquiet.kernel.validation import require_text
from conquiet.management.server import Server
from conquiet.queue.codec import CodecError, encode_payload
from conquiet.queue.replies import text
from conquiet.queue.scripts import ENQUEUE_MANY

BATCH = 500


def enqueue_all(
    server: Server, stream: str, payloads: Iterable[Any], *, max_payload_bytes: int = 1_048_576
) -> Iterator[list[str]]:
    """Add payloads in their order and yield the ids, batch by batch. Each batch is one step: all of it or none.

    The payloads are consumed as they are sent: a bad one ends it, and everything before it is there.
    """
    return enqueue_batches(server, stream, _batches(payloads), max_payload_bytes=max_payload_bytes)


def enqueue_batches(
    server: Server, stream: str, batches: Iterable[Sequence[Any]], *, max_payload_bytes: int = 1_048_576
) -> Iterator[list[str]]:
    """Do the same with batches that somebody else has made; see :func:`enqueue_all`."""
    require_text("stream", stream)
    server.is_stream(stream)
    for batch in batches:
        encoded: list[bytes] = []
        problem: PayloadError | None = None
        try:
            encoded.extend(_encoded(payload, stream, max_payload_bytes) for payload in batch)
        except PayloadError as error:
            problem = error
        if encoded:
            yield _send(server, stream, encoded)
        if problem is not None:
            raise problem


def _batches(payloads: Iterable[Any]) -> Iterator[list[Any]]:
    source = iter(payloads)
    problem: Exception | None = None
    while problem is None:
        batch: list[Any] = []
        try:
            batch.extend(islice(source, BATCH))
        except Exception as error:  # noqa: BLE001 - the source may raise anything; what came before it is sent first
            problem = error
        if batch:
            yield batch
        elif problem is None:
            return
    raise problem


def _encoded(payload: Any, stream: str, max_bytes: int) -> bytes:
    try:
        return encode_payload(payload, max_bytes=max_bytes)
    except CodecError as error:
        reason = error.reason
    raise PayloadError(f"the payload was refused: {reason}", stream=stream, command="XADD", reason=reason)


def _send(server: Server, stream: str, batch: list[bytes]) -> list[str]:
    return [text(one) for one in server.call("EVAL", ENQUEUE_MANY, 1, stream, *batch, stream=stream)]
