"""Decide the settlement of a message with an event that has no handler in this process. Pure.

    "ignore" ───────────────────────────────────────▶ Acknowledge
    "leave" ────────────────────────────────────────▶ Defer(delay_ms, unknown_since_ms)
    "dead_letter", unknown for less than the grace ─▶ Defer(delay_ms, unknown_since_ms)
    "dead_letter", unknown for longer ──────────────▶ DeadLetter

A deferred message goes to the delayed set and from there to the end of its stream, where any process of the group may
read it. It is then a new entry: no delivery and no attempt is charged. The delay is a quarter of the time for which the
message has been unknown: if half of the processes have the handler, most messages reach one within a second, and a
message without any handler costs two steps per ``LONGEST_MS``.
"""

from conquiet.core.settlement import ACKNOWLEDGE, Acknowledge, DeadLetter, Defer
from conquiet.processor.policy import Reason, milliseconds
from conquiet.processor.settings import Unknown

SHORTEST_MS = 250
LONGEST_MS = 30_000
UNKNOWN_FATES = {
    Acknowledge: "acknowledged and ignored",
    Defer: "left for a worker that has one",
    DeadLetter: "dead-lettered",
}
"""Descriptions for the log."""


def decide_unknown(
    policy: Unknown, *, grace_s: float, since_ms: int | None, now_ms: int
) -> Acknowledge | Defer | DeadLetter:
    """Return the settlement of a message without a handler in this process.

    Args:
        policy: The policy of the stream.
        grace_s: How long "dead_letter" waits for a process that has the handler.
        since_ms: When the message was first unknown, as stored in it. None the first time.
        now_ms: The server's clock.
    """
    if policy == "ignore":
        return ACKNOWLEDGE
    since_ms = now_ms if since_ms is None else min(since_ms, now_ms)  # any producer may have written it
    age_ms = now_ms - since_ms
    if policy == "dead_letter" and age_ms >= milliseconds(grace_s):
        return DeadLetter(Reason.UNKNOWN_EVENT.value)
    return Defer(min(max(age_ms // 4, SHORTEST_MS), LONGEST_MS), unknown_since_ms=since_ms)
