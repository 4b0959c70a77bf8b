"""Check servers for settings and states that lead to failures. Changes nothing.

Each kind of server has a module. It gathers facts with bounded commands; every check is a small pure function from
facts to findings.
"""

from conquiet.management.doctor.findings import Finding, Severity

__all__ = ["Finding", "Severity"]
