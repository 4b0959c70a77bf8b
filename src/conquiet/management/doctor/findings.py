"""A finding of the doctor: severity, fact, consequence and fix."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self, TypeVar

from conquiet.management.models import Report

F = TypeVar("F")


class Severity(StrEnum):
    """Severity of a finding.

    NOTE is information and no fault. WARNING will lead to a failure. ERROR breaks a promise now.
    """

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding(Report):
    """One result of a check.

    Attributes:
        check: Stable name of the check, such as ``redis.persistence``.
        what: The fact.
        why: Its consequence.
        fix: How to correct it.
    """

    check: str
    severity: Severity
    what: str
    why: str
    fix: str

    @classmethod
    def note(cls, check: str, what: str, why: str, fix: str) -> Self:
        """Return information about something that needs no change."""
        return cls(check, Severity.NOTE, what, why, fix)

    @classmethod
    def warning(cls, check: str, what: str, why: str, fix: str) -> Self:
        """Return a state that will lead to a failure."""
        return cls(check, Severity.WARNING, what, why, fix)

    @classmethod
    def error(cls, check: str, what: str, why: str, fix: str) -> Self:
        """Return a state that breaks a promise now."""
        return cls(check, Severity.ERROR, what, why, fix)


def run_checks(checks: Iterable[Callable[[F], Iterable[Finding]]], facts: F) -> list[Finding]:
    """Return the findings of all checks, the most severe first."""
    found = [finding for check in checks for finding in check(facts)]
    return sorted(found, key=lambda finding: -list(Severity).index(finding.severity))
