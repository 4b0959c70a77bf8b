"""The doctor: looks at servers and says what will bite, why, and what to do. Changes nothing.

Each server has a module: it gathers facts with bounded questions, and then every check is a small pure
function from facts to findings.
"""

from conquiet.management.doctor.findings import Finding, Severity

__all__ = ["Finding", "Severity"]
