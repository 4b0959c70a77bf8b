"""Names of OpenTelemetry's messaging conventions (a test compares them with the installed package), and of conquiet."""

from typing import Final

SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGE_ID: Final = "messaging.message.id"
GROUP: Final = "messaging.consumer.group.name"
BATCH_SIZE: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"

SEND: Final = "send"
PROCESS: Final = "process"
SETTLE: Final = "settle"

SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"

EVENT: Final = "conquiet.event"
ATTEMPT: Final = "conquiet.attempt"
