"""Spans of the relay: one for each published message, a child of the span that wrote its row."""

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from conquiet.core import tracing
from conquiet.transactional.relay_decisions import OutboxMessage


class SendSpans:
    """The spans of one batch. The messages carry their contexts on.

    Args:
        name: The target's name.
        target: The target.
        messages: The batch; their headers are changed.
    """

    def __init__(self, name: str, target: Any, messages: Sequence[OutboxMessage]) -> None:
        self._system = str(getattr(target, "system", "conquiet.outbox"))
        self._destination = str(getattr(target, "stream", None) or getattr(target, "queue", None) or name)
        self._messages = messages
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        assert tracing.active is not None  # noqa: S101 - checked by the caller
        for message in self._messages:
            span = tracing.active.send(
                self._system,
                self._destination,
                event=message.event,
                message_id=message.message_id,
                headers=message.headers,
                parent=message.headers or {},
            )
            message.headers = span.headers
            # Not current: they are siblings. Each ends with the batch.
            self._stack.push(span.__exit__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
