"""What the doctor says: a finding with its severity, why it matters and what to do."""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Severity(Enum):
    """How bad it is.

    NOTE is worth knowing and no fault; WARNING will bite some day; ERROR breaks a promise now.
    """

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Attributes:
        check: Its name, stable, for machines: ``redis.persistence``.
        what: What is so.
        why: What it leads to.
        fix: What to do about it.
    """

    check: str
    severity: Severity
    what: str
    why: str
    fix: str

    def as_dict(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return asdict(self) | {"severity": self.severity.value}
