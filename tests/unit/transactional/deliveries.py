"""Hand a message to a handler as each engine does."""

import asyncio
from types import SimpleNamespace
from typing import Any

from conquiet.rabbit.delivery import CURRENT


def from_runtime(handle: Any, *, group: str = "g", raw: bytes = b"{}", data: Any = None) -> None:
    message = SimpleNamespace(stream="s", id="1-0", data=data or {}, raw=raw)
    handle(message, SimpleNamespace(group=group, check_lease=lambda: None))


def from_processor(handle: Any, *, group: str = "g", id: str = "j-1", data: Any = None, event: str = "paid") -> None:  # noqa: A002
    handle(SimpleNamespace(id=id, event=event, data=data or {}, group=group, delivery=SimpleNamespace(stream="s")))


def from_rabbit(
    syncer: Any,
    message: Any = None,
    *,
    queue: str = "q",
    id: str | None = "m-1",  # noqa: A002
    body: bytes = b"{}",
) -> Any:
    async def deliver() -> Any:
        CURRENT.set(SimpleNamespace(queue=queue, message_id=id, body=body))  # type: ignore[arg-type]
        return await asyncio.to_thread(syncer, message or {})

    return asyncio.run(deliver())
