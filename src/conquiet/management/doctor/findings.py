"""A finding of the doctor: severity, what, why it matters and what to do."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, TypeVar

F = TypeVar("F")


class Severity(Enum):
    """How bad it is.

    NOTE is worth knowing and no fault; WARNING will lead to a failure some day; ERROR breaks a promise now.
    """

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check.

    Attributes:
        check: Its name, stable, for machines: ``redis.persistence``.
        what: The fact.
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


def run_checks(checks: Iterable[Callable[[F], Iterable[Finding]]], facts: F) -> list[Finding]:
    """Return the findings of all checks, the worst first."""
    found = [finding for check in checks for finding in check(facts)]
    return sorted(found, key=lambda finding: -list(Severity).index(finding.severity))
