"""Measure how far behind a group is, with five commands that each cost the server next to nothing."""

from collections.abc import Callable
from typing import Any

from conquiet.config import QueueConfig
from conquiet.errors import GroupMissingError
from conquiet.queue.models import Backlog
from conquiet.redis_transport.commands import pack
from conquiet.redis_transport.ids import milliseconds_of
from conquiet.redis_transport.replies import group_lag, group_row, server_ms, text

Call = Callable[[str, bytes], Any]


def read_backlog(config: QueueConfig, call: Call) -> Backlog:
    """Return length, lag, pending count and the age of the oldest entry that is not done.

    The commands are not one transaction: under load the numbers belong to slightly different moments.
    """
    stream, group = config.stream_key, config.consumer_group
    length = call("XLEN", pack("XLEN", stream))
    row = group_row(call("XINFO GROUPS", pack("XINFO", "GROUPS", stream)), group)
    if row is None:
        raise GroupMissingError(
            "XINFO GROUPS: the consumer group is gone", stream=stream, group=group, command="XINFO GROUPS"
        )
    pending = call("XPENDING", pack("XPENDING", stream, group))
    after = text(row[b"last-delivered-id"])
    waiting = call("XRANGE", pack("XRANGE", stream, f"({after}", "+", "COUNT", 1))
    candidates = [text(pending[1])] if pending[0] else []
    candidates += [text(waiting[0][0])] if waiting else []
    return Backlog(
        length=length,
        pending=pending[0],
        lag=group_lag(row, length=length, waiting=bool(waiting)),
        oldest_age_s=_age_s(candidates, call) if candidates else None,
    )


def _age_s(ids: list[str], call: Call) -> float:
    """Return the age of the oldest id by the server's clock, from which ids are made. The local clock may be off."""
    now_ms = server_ms(call("TIME", pack("TIME")))
    return max(0.0, (now_ms - min(map(milliseconds_of, ids))) / 1000)
