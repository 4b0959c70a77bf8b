"""What MySQL and SQLite say differently. Pure: texts only.

Times are compared by the database's own clock, so hosts whose clocks differ agree on what is due.
``UTC_TIMESTAMP`` and not ``NOW``: a session's time zone may have an hour that happens twice.
"""

from dataclasses import dataclass
from typing import Any, Final, Protocol


class Executes(Protocol):
    """The part of a session that is needed here."""

    def execute(self, sql: str, params: Any = None) -> int:
        """Run a statement."""
        ...


@dataclass(frozen=True, slots=True)
class Words:
    """One dialect.

    Attributes:
        now: The current time.
        later: The current time plus the bind ``later``.
        ago: The current time minus the bind ``ago``.
        age_us: Microseconds since ``created_at``.
        share: Makes a SELECT a current read.
        claim: Makes a SELECT lock its rows and skip those that are locked.
        by_due: Which index to use, after a table's name. Left to itself the optimizer may walk the primary key for an
            ORDER BY seq LIMIT 1, over every row that waits.
        by_key: The same for the index by order key.
        mysql: Whether it is MySQL or MariaDB.
    """

    now: str
    later: str
    ago: str
    age_us: str
    share: str
    claim: str
    by_due: str
    by_key: str
    mysql: bool

    def microseconds(self, seconds: float) -> int | str:
        """Return the value of a bind ``later`` or ``ago``."""
        if self.mysql:
            return round(seconds * 1_000_000)
        return f"{seconds:.6f} seconds"

    def delete_oldest(self, table: str, column: str, where: str) -> str:
        """Return a DELETE of at most ``:batch`` rows, the oldest first."""
        if self.mysql:
            return f"DELETE FROM {table} WHERE {where} ORDER BY `{column}` LIMIT :batch"  # noqa: S608 - names of ours
        return (
            f"DELETE FROM {table} WHERE rowid IN "  # noqa: S608
            f"(SELECT rowid FROM {table} WHERE {where} ORDER BY `{column}` LIMIT :batch)"
        )

    def delete_listed(self, table: str) -> str:
        """Return a DELETE of the rows whose ``seq`` is in ``:seqs``, a JSON array, and of a look at no other row.

        For an IN of a good part of a small table, which an outbox mostly is, MySQL and MariaDB read the table from end
        to end, whatever index is forced on them, and wait for every row that somebody else holds. Two relays that do
        so wait for each other: one is rolled back, and publishes again what it has published.
        """
        if self.mysql:
            return (
                f"DELETE o FROM JSON_TABLE(:seqs, '$[*]' COLUMNS (`seq` BIGINT UNSIGNED PATH '$')) AS listed "
                f"STRAIGHT_JOIN {table} AS o FORCE INDEX (PRIMARY) ON o.`seq` = listed.`seq`"
            )
        return f"DELETE FROM {table} WHERE `seq` IN (SELECT value FROM json_each(:seqs))"  # noqa: S608

    def read_committed(self, session: Executes) -> None:
        """Lock rows only, not the gaps between them. To be called first in a transaction.

        At MySQL's default level, REPEATABLE READ, a scan by FOR UPDATE or DELETE that reaches the end of an
        index keeps everyone else from inserting there until it commits.
        """
        if self.mysql:
            session.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")


_SQLITE_FORMAT: Final = "'%Y-%m-%d %H:%M:%f'"

MYSQL: Final = Words(
    now="UTC_TIMESTAMP(6)",
    later="UTC_TIMESTAMP(6) + INTERVAL :later MICROSECOND",
    ago="UTC_TIMESTAMP(6) - INTERVAL :ago MICROSECOND",
    age_us="TIMESTAMPDIFF(MICROSECOND, `created_at`, UTC_TIMESTAMP(6))",
    share=" LOCK IN SHARE MODE",  # MariaDB does not know FOR SHARE
    claim=" FOR UPDATE SKIP LOCKED",
    by_due=" FORCE INDEX (`by_due`)",
    by_key=" FORCE INDEX (`by_key`)",
    mysql=True,
)
SQLITE: Final = Words(
    now=f"strftime({_SQLITE_FORMAT}, 'now')",
    later=f"strftime({_SQLITE_FORMAT}, 'now', '+' || :later)",
    ago=f"strftime({_SQLITE_FORMAT}, 'now', '-' || :ago)",
    age_us="CAST((julianday('now') - julianday(`created_at`)) * 86400000000 AS INTEGER)",
    share="",
    claim="",
    by_due="",
    by_key="",
    mysql=False,
)


def words_for(*, mysql: bool) -> Words:
    """Return the dialect."""
    return MYSQL if mysql else SQLITE
