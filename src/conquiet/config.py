"""Configuration dataclasses: frozen, and validated when they are created.

See docs/decisions/0028.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from conquiet.core.decode_function import Decode, require_decode
from conquiet.core.operations import DbOperationType
from conquiet.core.validation import (
    require_bool,
    require_identifier,
    require_instance,
    require_positive,
    require_table,
    require_text,
)
from conquiet.errors import ConfigurationError

CLAIM_IDLE_MS: Final = 60_000
"""Default of every ``claim_idle_ms``: idle time after which an entry is stale. SPEC(001 §4.1)."""


@dataclass(frozen=True, slots=True)
class DbConfig:
    """The table that a writer writes to, and the column that identifies its rows. SPEC(003 §3.1).

    Attributes:
        table_name: ``table`` or ``schema.table``.
        op_type: Has no effect. SPEC(003 §3.1) names it; each ``DbOperation`` has its own type.
        id_column: Column that identifies a row: the primary key or another unique column.
        insert_mode: Has one value, ``"insert"``. SPEC(003 §5.10) names it. INSERT IGNORE would hide errors that are
            not duplicates, and an upsert is an update without a lock.
    """

    table_name: str
    op_type: DbOperationType = DbOperationType.INSERT
    id_column: str = "id"
    insert_mode: Literal["insert"] = "insert"

    def __post_init__(self) -> None:
        require_table("table_name", self.table_name)
        require_identifier("id_column", self.id_column)
        require_instance("op_type", self.op_type, DbOperationType)
        if self.insert_mode != "insert":
            raise ConfigurationError('insert_mode must be "insert": no other mode keeps the promise of one row per id')


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Stream, group and limits of one consumer. SPEC(001 §4.1).

    Everything after ``consumer_name`` is keyword-only.

    Attributes:
        stream_key: Redis key of the stream.
        consumer_group: Consumer group. Its members share the entries of the stream.
        consumer_name: Name of this process inside the group. Two live processes with one name
            would read each other's pending entries as their own.
        block_ms: Longest wait of one read. Zero is rejected because Redis treats it as "no limit", and then a stop
            request is never noticed.
        max_read_count: Entries per read. Must be 1 for ``QueueConsumer``, which holds one message at a time.
        claim_idle_ms: Idle time after which an entry is stale.
        max_payload_bytes: Maximum size of an encoded payload, for writing and reading.
        claim_skip_own_messages: Make ``claim_stale`` skip messages that are pending for ``consumer_name`` itself, so
            that a process does not claim a message that its own slow handler is still running.
        decode: Reads entries that other programs write with several plain fields: a function from names and values
            (bytes) to the payload. None accepts one field ``data`` with a JSON object, which is also what ``enqueue``
            writes.
    """

    stream_key: str
    consumer_group: str
    consumer_name: str
    block_ms: int = field(default=5_000, kw_only=True)
    max_read_count: int = field(default=1, kw_only=True)
    claim_idle_ms: int = field(default=CLAIM_IDLE_MS, kw_only=True)
    max_payload_bytes: int = field(default=1_048_576, kw_only=True)
    claim_skip_own_messages: bool = field(default=False, kw_only=True)
    decode: Decode | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        require_text("stream_key", self.stream_key)
        require_text("consumer_group", self.consumer_group)
        require_text("consumer_name", self.consumer_name)
        require_positive("block_ms", self.block_ms)
        require_positive("max_read_count", self.max_read_count)
        require_positive("claim_idle_ms", self.claim_idle_ms)
        require_positive("max_payload_bytes", self.max_payload_bytes)
        require_bool("claim_skip_own_messages", self.claim_skip_own_messages)
        require_decode(self.decode)
