"""Record each action of the dashboard in the audit stream: user, action, target and result. Entries never change.

An action is recorded before it is executed, and refused if recording fails: no action is without a record. A second
entry holds the result and refers to the first.
"""

from dataclasses import dataclass
from typing import Final

from conquiet.core.redaction import printable
from conquiet.management.redis_admin import RedisAdmin
from conquiet.redis_transport.ids import milliseconds_of
from conquiet.redis_transport.replies import as_mapping, text

AUDIT_STREAM: Final = "conquiet:audit"
MOST_ENTRIES: Final = 100_000
_MOST_TEXT: Final = 300
_PER_PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the audit.

    Attributes:
        id: Its id in the audit stream.
        of: Id of the entry of the action, for the entry of its result; else empty.
        user: Name of the user.
        action: Name of the action, such as ``replay``.
        target: A stream, a schedule entry, a queue or a run.
        detail: Filter or ids of the action, or its result.
        client: Network address of the browser.
    """

    id: str
    of: str
    user: str
    action: str
    target: str
    detail: str
    client: str

    @property
    def at_ms(self) -> int:
        """Time of the entry, by the server's clock."""
        return milliseconds_of(self.id)


def record_action(
    server: RedisAdmin, *, user: str, action: str, target: str, detail: str, client: str = "", of: str = ""
) -> str:
    """Add an entry and return its id."""
    fields = {"of": of, "user": user, "action": action, "target": target, "detail": detail, "client": client}
    words = [word for name, value in fields.items() for word in (name, printable(value, limit=_MOST_TEXT))]
    return text(server.call("XADD", AUDIT_STREAM, "MAXLEN", "~", MOST_ENTRIES, "*", *words, stream=AUDIT_STREAM))


def list_actions(server: RedisAdmin, *, before: str | None = None) -> list[AuditEntry]:
    """Return the newest 100 entries; with ``before``, the newest ones older than that id."""
    start = "+" if before is None else f"({before}"
    found = []
    for raw_id, fields in server.call("XREVRANGE", AUDIT_STREAM, start, "-", "COUNT", _PER_PAGE, stream=AUDIT_STREAM):
        known = {text(name): value.decode("utf-8", "backslashreplace") for name, value in as_mapping(fields).items()}
        names = ("of", "user", "action", "target", "detail", "client")
        found.append(AuditEntry(text(raw_id), *(known.get(name, "") for name in names)))
    return found
