"""RabbitMQ: pass the messages of a queue to a syncer, and settle each one by its outcome. SPEC(004).

sync_queue(url, queue, syncer)      run a whole process
RabbitConsumer(url, queue, syncer)  do the same inside your event loop
Publisher(url)                      publish with confirms
RabbitDeadLetters(url, queue)       list, show, replay and discard the messages of a dead-letter queue
current_delivery()                  inside a syncer: its queue, message_id, headers, redelivered flag
"""

from conquiet.core.constructor_help import describe_constructors
from conquiet.core.extras import require_extra

require_extra("rabbit", "pika")

from conquiet.core.replay_report import ReplayReport  # noqa: E402 - the check comes first
from conquiet.rabbit.batch_results import current_deliveries  # noqa: E402
from conquiet.rabbit.connection_events import ConnectionEvent, EventKind  # noqa: E402
from conquiet.rabbit.consumer import RabbitConsumer  # noqa: E402
from conquiet.rabbit.counters import Counters  # noqa: E402
from conquiet.rabbit.dead_delivery import DeadDelivery, DeliveryCause, DeliveryFilter  # noqa: E402
from conquiet.rabbit.dead_letters import RabbitDeadLetters  # noqa: E402
from conquiet.rabbit.delivery import Delivery, current_delivery  # noqa: E402
from conquiet.rabbit.message_schemas import SchemaRegistry  # noqa: E402
from conquiet.rabbit.peek_safety import PeekUnsafeError  # noqa: E402
from conquiet.rabbit.proca.keystore import FileKeyStore, KeyStore, MemoryKeyStore  # noqa: E402
from conquiet.rabbit.proca.messages import ActionMessage, EventMessage, KeyRef, PersonalInfo  # noqa: E402
from conquiet.rabbit.proca.seal import seal  # noqa: E402
from conquiet.rabbit.process_runner import run_process, sync_queue  # noqa: E402
from conquiet.rabbit.publisher import Outgoing, Publisher  # noqa: E402
from conquiet.rabbit.settings import RabbitSettings  # noqa: E402
from conquiet.rabbit.syncer import DeadLetterNow, Postpone  # noqa: E402

__all__ = [
    "ActionMessage",
    "ConnectionEvent",
    "Counters",
    "DeadDelivery",
    "DeadLetterNow",
    "Delivery",
    "DeliveryCause",
    "DeliveryFilter",
    "EventKind",
    "EventMessage",
    "FileKeyStore",
    "KeyRef",
    "KeyStore",
    "MemoryKeyStore",
    "Outgoing",
    "PeekUnsafeError",
    "PersonalInfo",
    "Postpone",
    "Publisher",
    "RabbitConsumer",
    "RabbitDeadLetters",
    "RabbitSettings",
    "ReplayReport",
    "SchemaRegistry",
    "current_deliveries",
    "current_delivery",
    "run_process",
    "seal",
    "sync_queue",
]

describe_constructors(globals())
