"""How far behind a group is, from a handful of commands that each cost the server next to nothing."""

from collections.abc import Callable
from typing import Any

from conquiet.config import QueueConfig
from conquiet.errors import GroupMissingError
from conquiet.queue.commands import pack
from conquiet.queue.models import Backlog
from conquiet.queue.recovery import id_key
from conquiet.queue.replies import as_mapping, text

Call = Callable[[str, bytes], Any]


def read_backlog(config: QueueConfig, call: Call) -> Backlog:
    """Ask for length, lag, pending and the oldest entry that is not done.

    The commands are not one transaction: under load the numbers are of slightly different moments.
    """
    stream, group = config.stream_key, config.consumer_group
    length = call("XLEN", pack("XLEN", stream))
    row = _group_row(call("XINFO GROUPS", pack("XINFO", "GROUPS", stream)), config)
    pending = call("XPENDING", pack("XPENDING", stream, group))
    after = text(row[b"last-delivered-id"])
    waiting = call("XRANGE", pack("XRANGE", stream, f"({after}", "+", "COUNT", 1))
    candidates = [text(pending[1])] if pending[0] else []
    candidates += [text(waiting[0][0])] if waiting else []
    return Backlog(
        length=length,
        pending=pending[0],
        lag=_lag(row, length, waiting=bool(waiting)),
        oldest_age_s=_age_s(candidates, call) if candidates else None,
    )


def _lag(row: dict[bytes, Any], length: int, *, waiting: bool) -> int | None:
    """What the server says, where it is certainly wrong put right without counting.

    It loses count when entries in the middle are deleted, and goes on counting undelivered entries
    that were trimmed. But nothing waiting is nothing, and more than there is cannot be waiting.
    """
    if not waiting:
        return 0
    lag: int | None = row.get(b"lag")
    return None if lag is None else min(lag, length)


def _group_row(reply: Any, config: QueueConfig) -> dict[bytes, Any]:
    for raw in reply:
        row = as_mapping(raw)
        if row[b"name"] == config.consumer_group.encode():
            return row
    raise GroupMissingError(
        "XINFO GROUPS: the consumer group is gone",
        stream=config.stream_key,
        group=config.consumer_group,
        command="XINFO GROUPS",
    )


def _age_s(ids: list[str], call: Call) -> float:
    """Age by the server's clock: ours may be off, and the ids were made from the server's."""
    seconds, microseconds = call("TIME", pack("TIME"))
    now_ms = int(seconds) * 1000 + int(microseconds) // 1000
    return max(0.0, (now_ms - min(id_key(message_id) for message_id in ids)[0]) / 1000)
