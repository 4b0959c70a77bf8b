"""What may be done to a row."""

from enum import Enum


class DbOperationType(str, Enum):  # noqa: UP042 - the seed names these bases; StrEnum formats differently
    """The two writes there are. SPEC(003 §5.1)."""

    INSERT = "insert"
    UPDATE = "update"
