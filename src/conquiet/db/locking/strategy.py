"""The lock strategies of an UPDATE."""

from enum import Enum


class LockStrategy(str, Enum):  # noqa: UP042 - the seed names these bases; StrEnum formats differently
    """Lock that an UPDATE takes. ADVISORY_AND_ROW is the only combination. SPEC(003 §5.2).

    They apply to UPDATE only. INSERT relies on the table's unique keys and never locks.
    """

    ADVISORY = "advisory"
    ROW = "row"
    ADVISORY_AND_ROW = "advisory_and_row"
    TABLE = "table"
    NONE = "none"
