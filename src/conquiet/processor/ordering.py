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
from conquiet.processor.scripts import script
from conquiet.runtime.message import AckScript, RuntimeMessage

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


class KeyedAcks:
    """Selects a script for the acknowledgement of messages with a key. The script also releases the key.

    Args:
        group: The consumer group.
        consumer_id: Name of the engine in it. The script checks that it still owns the entry.
    """

    def __init__(self, group: str, consumer_id: str) -> None:
        self._who = (group, consumer_id)
        self._scripts: dict[str, AckScript] = {}

    def prepare(self, message: RuntimeMessage, envelope: Envelope, keys: Keys) -> None:
        """Set the acknowledgement script of the message. Sends nothing."""
        turn = turn_of(envelope)
        if turn is NO_TURN:
            return
        known = self._scripts.get(keys.stream)
        if known is None:
            finish = script("finish")
            names = tuple(finish.declared((keys.stream, keys.order)))
            known = self._scripts[keys.stream] = AckScript(finish.source, names, self._who)
        message.ack_script, message.ack_args = known, turn
