"""The relay's statements: look, lock, check the order, settle. One transaction each batch.

    scan       due rows, not locked, not many columns; bounded
    lock       those of them that we want, by primary key, skipping what another relay has
    heads      which of the locked rows are the oldest of their keys: read after the locks, so nothing is missed
    following  what comes next in those keys
    settle     delete what is published, put off or park what was refused

All of it needs READ COMMITTED: each statement sees what was committed before it, and no gap is locked.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import TextClause, bindparam, text

from conquiet.bridge.policy import Letter, Park, Retry, Seen
from conquiet.bridge.words import words_for
from conquiet.db.session import DbSession
from conquiet.db.sql import quoted

Position = tuple[Any, int]
"""Where a scan ended: due time and seq."""

_COLUMNS: Final = "o.`seq` AS seq, o.`message_id` AS id, o.`order_key` AS k, o.`payload` AS payload, o.`attempts` AS n"

# LIMIT 1 and not MIN(): MySQL reads the whole key for a MIN() that is correlated.
_OLDEST: Final = (
    "(SELECT e.`seq` FROM {table} AS e WHERE e.`target` = o.`target` AND e.`order_key` = o.`order_key` "
    "AND e.`parked` = 0 ORDER BY e.`seq` LIMIT 1)"
)


class Desk:
    """Statements on one outbox table for one target."""

    def __init__(self, table: str, target: str, *, mysql: bool) -> None:
        self._target = target.encode()
        words = words_for(mysql=mysql)
        self._words = words
        name = quoted(table)
        age = words.age_us
        due = f"`target` = :target AND `parked` = 0 AND `due_at` <= {words.now}"
        self._scan = text(
            f"SELECT `seq`, `order_key`, `due_at`, {age} AS age FROM {name} WHERE {due} "  # noqa: S608 - names of ours
            "ORDER BY `due_at`, `seq` LIMIT :count"
        )
        self._scan_on = text(
            f"SELECT `seq`, `order_key`, `due_at`, {age} AS age FROM {name} WHERE {due} "  # noqa: S608
            "AND (`due_at` > :at OR (`due_at` = :at AND `seq` > :after)) ORDER BY `due_at`, `seq` LIMIT :count"
        )
        self._lock = _with_list(
            f"SELECT {_COLUMNS}, {age} AS age FROM {name} AS o "  # noqa: S608
            f"WHERE o.`seq` IN :seqs AND o.`parked` = 0 AND o.`due_at` <= {words.now}{words.claim}"
        )
        self._heads = _with_list(
            f"SELECT o.`seq` AS seq FROM {name} AS o "  # noqa: S608
            f"WHERE o.`seq` IN :seqs AND o.`seq` = {_OLDEST.format(table=name)}",
        )
        self._following = _with_list(
            f"SELECT {_COLUMNS}, {age} AS age, o.`due_at` <= {words.now} AS due FROM {name} AS o "  # noqa: S608
            "WHERE o.`target` = :target AND o.`order_key` IN :keys AND o.`parked` = 0 AND o.`seq` <= :last "
            "ORDER BY o.`seq` LIMIT :count",
            "keys",
        )
        self._delete = _with_list(f"DELETE FROM {name} WHERE `seq` IN :seqs")  # noqa: S608
        self._retry = text(
            f"UPDATE {name} SET `attempts` = :n, `due_at` = {words.later}, `reason` = :reason WHERE `seq` = :seq"  # noqa: S608
        )
        self._park = text(f"UPDATE {name} SET `attempts` = :n, `parked` = 1, `reason` = :reason WHERE `seq` = :seq")  # noqa: S608
        # SQLite has one writer: being it keeps every other relay out until the end of the transaction.
        self._take_turns = text(f"DELETE FROM {name} WHERE `seq` = -1")  # noqa: S608

    def begin(self, session: DbSession) -> None:
        """Keep other relays out where rows cannot be locked one by one."""
        if not self._words.mysql:
            session.execute(self._take_turns)

    def scan(self, session: DbSession, *, after: Position | None, count: int) -> tuple[list[Seen], float]:
        """Return due rows behind a position, and the age in seconds of the first."""
        binds: dict[str, Any] = {"target": self._target, "count": count}
        if after is None:
            rows = session.fetch_all(self._scan, binds)
        else:
            rows = session.fetch_all(self._scan_on, {**binds, "at": after[0], "after": after[1]})
        age_s = max(0.0, rows[0]["age"] / 1e6) if rows else 0.0
        return [Seen(row["seq"], _key(row["order_key"]), row["due_at"]) for row in rows], age_s

    def lock(self, session: DbSession, seqs: Sequence[int]) -> list[Letter]:
        """Lock rows and return those that were free, alive and due."""
        return [_letter(row) for row in session.fetch_all(self._lock, {"seqs": seqs})] if seqs else []

    def heads(self, session: DbSession, seqs: Sequence[int]) -> set[int]:
        """Return which of the rows are the oldest live ones of their keys."""
        return {row["seq"] for row in session.fetch_all(self._heads, {"seqs": seqs})} if seqs else set()

    def following(self, session: DbSession, keys: Sequence[bytes], *, last: int, count: int) -> list[Letter]:
        """Return the oldest live rows of keys, due or not, up to the row ``last``: of each key without a gap."""
        binds = {"target": self._target, "keys": keys, "last": last, "count": count}
        return [_letter(row) for row in session.fetch_all(self._following, binds)]

    def settle(
        self, session: DbSession, *, published: Sequence[int], refused: Iterable[tuple[Retry | Park, str]]
    ) -> None:
        """Write down what became of the letters."""
        if published:
            session.execute(self._delete, {"seqs": published})
        for decision, reason in refused:
            binds: dict[str, Any] = {"seq": decision.seq, "n": decision.attempts, "reason": reason.encode()[:255]}
            if isinstance(decision, Retry):
                session.execute(self._retry, {**binds, "later": self._words.microseconds(decision.delay_s)})
            else:
                session.execute(self._park, binds)


def _with_list(statement: str, name: str = "seqs") -> TextClause:
    return text(statement).bindparams(bindparam(name, expanding=True))


def _letter(row: dict[str, Any]) -> Letter:
    return Letter(
        row["seq"],
        bytes(row["id"]).decode(),
        _key(row["k"]),
        bytes(row["payload"]),
        row["n"],
        max(0.0, row["age"] / 1e6),
        bool(row.get("due", True)),
    )


def _key(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
