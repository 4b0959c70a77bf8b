"""Order by key: acknowledge a message and start the next message of its key in one script.

    emit(key=k) ──▶ k has no holder ──▶ stream, with a ticket ──▶ run ──▶ finish: acknowledged, and
                └─▶ k has a holder ─▶ list of k ◀──────────────────────── the next of k enters the stream

At most one message of a key is in the stream, pending, delayed or parked. No lock is used, so a crash leaves none:
the entry of a killed worker is claimed like any other, and the key continues with it.

See docs/decisions/0050.
"""

from typing import Final

from conquiet.core.log import FactLogger
from conquiet.processor.delayed import Poll
from conquiet.processor.envelope import Envelope
from conquiet.processor.keys import Keys

logger = FactLogger(__name__)

NO_TURN: Final = ("", "")
"""The key and ticket of a message without a key, or of a message that keeps its key."""


def turn_of(envelope: Envelope) -> tuple[str, str]:
    """Return key and ticket in the format of the scripts."""
    return NO_TURN if envelope.ticket is None or envelope.key is None else (envelope.key_text, str(envelope.ticket))


class OrderOwnerCheck:
    """Logs a warning, once per stream, if another group owns its order by key.

    Args:
        group: The group of this processor.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._reported: set[str] = set()

    def __call__(self, keys: Keys, found: Poll) -> None:
        """Check the result of a poll."""
        owner = found.order_group
        if owner is None or owner == self._group or keys.stream in self._reported:
            return
        self._reported.add(keys.stream)
        logger.warning(
            "group %(group)s reads stream %(stream)s, whose order by key belongs to group %(owner)s: here messages of "
            "one key may run at once. Emit to a stream for each group that needs the order",
            group=self._group,
            stream=keys.stream,
            owner=owner,
        )
