"""Lua scripts of the processor, each on keys of one hash slot. See ``redis_transport.scripts`` for how they run."""

from collections.abc import Sequence
from typing import Any

from conquiet.redis_transport.scripts import Arg, Script, load_script
from conquiet.redis_transport.stream_scripts import ENQUEUE_MANY

__all__ = ["ADD_MANY", "ADD_ONE", "Arg", "Script", "script"]

_ACTIONS = {
    "dead_letter": "dead-lettering",
    "debounce": "emit",
    "finish": "acknowledging",
    "join": "joining the messages of a key",
    "park": "parking",
    "reschedule": "scheduling a retry",
    "tick": "looking for due messages",
    "turn": "taking a turn of a rate limit",
    "unpark": "returning parked messages",
}
"""What a script does, in words for an error, where its name does not say it."""


class _AddOne(Script):
    """``ADD_MANY`` for one message: a single command is atomic without a script, and costs half as much."""

    def words(self, keys: Sequence[str], args: Sequence[Arg], *, in_full: bool = False) -> list[Arg]:  # noqa: ARG002
        return ["XADD", keys[0], "*", "data", args[0]]

    def parsed(self, reply: Any) -> Any:
        return [reply]


ADD_ONE: Script = _AddOne("emit_now", "", "", "emit")
ADD_MANY: Script = Script.from_source("emit_now", ENQUEUE_MANY, action="emit")


def script(name: str) -> Script:
    """Return the script of that name, read once per process."""
    return load_script("conquiet.processor", name, _ACTIONS.get(name, ""))
