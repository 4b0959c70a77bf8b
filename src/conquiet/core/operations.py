"""The operations of a database writer."""

from enum import Enum


class DbOperationType(str, Enum):  # noqa: UP042 - the seed names these bases; StrEnum formats differently
    """The kind of a write: insert or update one row. SPEC(003 §5.1)."""

    INSERT = "insert"
    UPDATE = "update"
