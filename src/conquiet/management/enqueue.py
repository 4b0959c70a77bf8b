"""Add payloads to a stream in atomic batches. Consumer groups are not created or changed."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from conquiet.core.json_codec import CodecError, encode_payload
from conquiet.core.validation import require_text
from conquiet.management.redis_admin import RedisAdmin, require_admin
from conquiet.redis_transport.replies import text
from conquiet.redis_transport.stream_scripts import ENQUEUE_MANY

BATCH = 500


def enqueue_all(
    server: RedisAdmin, stream: str, payloads: Iterable[Any], *, max_payload_bytes: int = 1_048_576
) -> Iterator[list[str]]:
    """Add payloads in order and yield the ids, batch by batch. Each batch is atomic.

    A batch is added when its ids are requested: consume the iterator to the end.

    An invalid payload ends the call; all payloads before it have been added.
    """
    return enqueue_batches(server, stream, _slices(iter(payloads)), max_payload_bytes=max_payload_bytes)


def enqueue_batches(
    server: RedisAdmin, stream: str, batches: Iterable[Iterable[Any]], *, max_payload_bytes: int = 1_048_576
) -> Iterator[list[str]]:
    """Add batches that the caller has formed; see :func:`enqueue_all`. An empty batch ends the call."""
    require_text("stream", stream)
    require_admin(server).is_stream(stream)
    for batch in batches:
        encoded: list[bytes] = []
        problem: Exception | None = None
        try:
            encoded.extend(_encoded(payload, stream, max_payload_bytes) for payload in batch)
        except Exception as error:  # noqa: BLE001 - the source may raise anything; earlier payloads are sent first
            problem = error
        if encoded:
            yield _send(server, stream, encoded)
        if problem is not None:
            raise problem
        if not encoded:
            return


def _slices(source: Iterator[Any]) -> Iterator[Iterator[Any]]:
    """Yield the payloads in batches; empty ones after the last."""
    while True:
        yield islice(source, BATCH)


def _encoded(payload: Any, stream: str, max_bytes: int) -> bytes:
    try:
        return encode_payload(payload, max_bytes=max_bytes)
    except CodecError as error:
        refused = error
    raise refused.as_payload_error("the payload", stream=stream, command="XADD")


def _send(server: RedisAdmin, stream: str, batch: list[bytes]) -> list[str]:
    return [text(one) for one in server.call("EVAL", ENQUEUE_MANY, 1, stream, *batch, stream=stream)]
