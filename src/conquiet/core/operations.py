"""The operations of a database writer."""

from enum import Enum


class DbOperationType(str, Enum):  # noqa: UP042 - the seed names these bases; StrEnum formats differently
    """Insert or update. SPEC(003 §5.1)."""

    INSERT = "insert"
    UPDATE = "update"
