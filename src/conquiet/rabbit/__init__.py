"""RabbitMQ: take messages from a queue to a syncer and settle each one exactly as its outcome says. SPEC(004).

sync_queue(url, queue, syncer)      the whole job of a process
RabbitConsumer(url, queue, syncer)  the same inside an event loop of yours
Publisher(url)                      confirmed publishing
DeadLetters(url)                    replay of a dead-letter queue
current_delivery()                  inside a syncer: its message_id, headers, redelivered flag
"""

from conquiet.kernel.extras import require_extra

require_extra("rabbit", "pika", "msgspec")

from conquiet.rabbit.config import RabbitConfig, RabbitOptions  # noqa: E402 - the check comes first
from conquiet.rabbit.consumer import RabbitConsumer  # noqa: E402
from conquiet.rabbit.counters import Counters  # noqa: E402
from conquiet.rabbit.dead_letters import DeadLetters, Replayed  # noqa: E402
from conquiet.rabbit.delivery import Delivery, current_delivery  # noqa: E402
from conquiet.rabbit.events import ConnectionEvent, EventKind  # noqa: E402
from conquiet.rabbit.keystore import FileKeyStore, KeyStore  # noqa: E402
from conquiet.rabbit.proca import ActionMessage, EventMessage  # noqa: E402
from conquiet.rabbit.publisher import Outgoing, Publisher  # noqa: E402
from conquiet.rabbit.runner import run_process, sync_queue  # noqa: E402
from conquiet.rabbit.schema import SchemaRegistry  # noqa: E402

__all__ = [
    "ActionMessage",
    "ConnectionEvent",
    "Counters",
    "DeadLetters",
    "Delivery",
    "EventKind",
    "EventMessage",
    "FileKeyStore",
    "KeyStore",
    "Outgoing",
    "Publisher",
    "RabbitConfig",
    "RabbitConsumer",
    "RabbitOptions",
    "Replayed",
    "SchemaRegistry",
    "current_delivery",
    "run_process",
    "sync_queue",
]
