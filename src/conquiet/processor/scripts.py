"""Lua scripts of the processor, each on keys of one hash slot. ``redis_transport.scripts`` runs them."""

from collections.abc import Collection, Sequence
from typing import Any

from conquiet.redis_transport.client import AsyncClient
from conquiet.redis_transport.scripts import Arg, Script, load_script
from conquiet.redis_transport.stream_scripts import ENQUEUE_MANY
from conquiet.runtime.message import RuntimeMessage

__all__ = ["ADD_MANY", "ADD_ONE", "Arg", "Script", "move", "script"]

_ACTIONS = {
    "dead_letter": "dead-lettering",
    "debounce": "emit",
    "finish": "acknowledging",
    "join": "joining the messages of a key",
    "park": "parking",
    "reschedule": "scheduling a retry",
    "reserve_rate": "reserving a start under a rate limit",
    "promote_due": "moving due messages",
    "unpark": "returning parked messages",
}
"""Descriptions of scripts for error texts. The default is the script's name."""


class _AddOne(Script):
    """``ADD_MANY`` for one message: a single command is atomic without a script and costs half as much."""

    def words(self, keys: Sequence[str], args: Sequence[Arg], *, in_full: bool = False) -> list[Arg]:  # noqa: ARG002
        return ["XADD", keys[0], "*", "data", args[0]]

    def parsed(self, reply: Any) -> Any:
        return [reply]


ADD_ONE: Script = _AddOne("emit_now", "", "", "emit")
ADD_MANY: Script = Script.from_source("emit_now", ENQUEUE_MANY, action="emit")


def script(name: str) -> Script:
    """Return the script of this name, which is read once per process."""
    return load_script("conquiet.processor", name, _ACTIONS.get(name, ""))


async def move(
    client: AsyncClient,
    message: RuntimeMessage,
    name: str,
    keys: Sequence[str],
    args: Sequence[Arg],
    *,
    group: str,
    left: Collection[int] = (),
) -> int:
    """Call a script that may remove a message from the pending list. Return its reply.

    After a reply that is not in ``left`` the executor returns ``Moved``. Until then the message stays ``SETTLING``, so
    that the heartbeat does not report it as lost.
    """
    with message.settling() as settling:
        reply: int = await script(name).call(client, keys, args, stream=message.stream, group=group)
        settling.has_moved = reply not in left
    return reply
