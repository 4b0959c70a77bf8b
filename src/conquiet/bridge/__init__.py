"""The bridge: a message's effect exactly once. The only room that knows a broker and the database.

    Inbox          a row in the handler's transaction: the second run of a message steps aside
    Fence          before COMMIT, is the message still ours? Optional, on top of the inbox
    Outbox         a message written in the transaction that causes it
    OutboxRelay    takes such messages to Redis Streams, to the processor, to RabbitMQ, at least once

What it means, what it does not mean and how to choose keys: docs/exactly-once.md.
"""

from typing import TYPE_CHECKING

from conquiet.kernel.extras import require_extra

require_extra("mysql", "sqlalchemy")

from conquiet.bridge.fence import Fence, Once  # noqa: E402 - after the check above
from conquiet.bridge.handlers import effect_once, for_processor, for_rabbit, for_runtime  # noqa: E402
from conquiet.bridge.inbox import Inbox  # noqa: E402
from conquiet.bridge.keys import InboxKey, by_outbox_id, outbox_id_of  # noqa: E402
from conquiet.bridge.outbox import Outbox, OutboxBacklog, ParkedLetter  # noqa: E402
from conquiet.bridge.policy import Letter, Outcome  # noqa: E402
from conquiet.bridge.relay import OutboxRelay, Relayed  # noqa: E402
from conquiet.bridge.schema import create_tables  # noqa: E402
from conquiet.bridge.targets import Target, ToProcessor, ToStream  # noqa: E402

if TYPE_CHECKING:
    from conquiet.bridge.rabbit_target import ToRabbit

__all__ = [
    "Fence",
    "Inbox",
    "InboxKey",
    "Letter",
    "Once",
    "Outbox",
    "OutboxBacklog",
    "OutboxRelay",
    "Outcome",
    "ParkedLetter",
    "Relayed",
    "Target",
    "ToProcessor",
    "ToRabbit",
    "ToStream",
    "by_outbox_id",
    "create_tables",
    "effect_once",
    "for_processor",
    "for_rabbit",
    "for_runtime",
    "outbox_id_of",
]


def __getattr__(name: str) -> object:
    # Needs the extra "rabbit"; nothing else here does.
    if name == "ToRabbit":
        from conquiet.bridge.rabbit_target import ToRabbit

        return ToRabbit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
