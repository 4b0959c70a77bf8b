"""The relay's statements: look, lock, check the order, settle. One transaction each batch.

    without a key    take      lock due rows, skipping what another relay has: one statement
    with a key       scan      due rows, not locked; bounded
                     lock      the oldest of each key, by primary key, skipping what another relay has
                     oldest    these keys from their beginning: read after the locks, so nothing is missed
    both             settle    delete what is published, put off or park what was refused

All of it needs READ COMMITTED: each statement sees what was committed before it, and no gap is locked.
"""

import json
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
    "(SELECT e.`seq` FROM {table} AS e{by_key} WHERE e.`target` = o.`target` AND e.`order_key` = o.`order_key` "
    "AND e.`parked` = 0 ORDER BY e.`seq` LIMIT 1)"
)


class Desk:
    """Statements on one outbox table for one target."""

    def __init__(self, table: str, target: str, *, mysql: bool) -> None:
        self._target = target.encode()
        words = words_for(mysql=mysql)
        self._words = words
        name = quoted(table)
        select = f"SELECT {_COLUMNS}, {words.age_us} AS age FROM {name} AS o"  # noqa: S608 - names of ours
        due = f"`target` = :target AND `parked` = 0 AND `free` = {{free}} AND `due_at` <= {words.now}"
        self._take = text(
            f"{select}{words.by_due} WHERE {due.format(free=1)} ORDER BY `due_at`, `seq` LIMIT :count{words.claim}"
        )
        columns = f"`seq`, `order_key` AS k, {words.age_us} AS age"
        scan = f"SELECT {columns} FROM {name}{words.by_due} WHERE {due.format(free=0)}"  # noqa: S608
        self._scan = text(f"{scan} ORDER BY `due_at`, `seq` LIMIT :count")
        self._scan_on = text(
            f"{scan} AND (`due_at` > :at OR (`due_at` = :at AND `seq` > :after)) ORDER BY `due_at`, `seq` LIMIT :count"
        )
        self._place = text(f"SELECT `due_at` FROM {name} WHERE `seq` = :seq")  # noqa: S608
        oldest = _OLDEST.format(table=name, by_key=words.by_key)
        # The condition keeps locks off rows that are not the oldest of their keys. Their owner will delete them as
        # followers, and two relays that each hold a row the other wants to delete would deadlock.
        self._lock = _with_list(
            f"SELECT o.`seq` AS seq, o.`order_key` AS k FROM {name} AS o "  # noqa: S608
            f"WHERE o.`seq` IN :seqs AND o.`parked` = 0 AND o.`due_at` <= {words.now} "
            f"AND o.`seq` = {oldest}{words.claim}"
        )
        self._oldest = _with_list(
            f"SELECT {_COLUMNS}, {words.age_us} AS age, o.`due_at` <= {words.now} AS due "  # noqa: S608
            f"FROM {name} AS o{words.by_key} WHERE o.`target` = :target AND o.`order_key` IN :keys AND o.`parked` = 0 "
            "AND o.`seq` <= :last ORDER BY o.`seq` LIMIT :count",
            "keys",
        )
        self._delete = text(words.delete_listed(name))
        refused = f"UPDATE {name} SET `attempts` = :n, `reason` = :reason"  # noqa: S608
        self._retry = text(f"{refused}, `due_at` = {words.later} WHERE `seq` = :seq")
        self._park = text(f"{refused}, `parked` = 1 WHERE `seq` = :seq")
        # SQLite has one writer: being it keeps every other relay out until the end of the transaction.
        self._take_turns = text(f"DELETE FROM {name} WHERE `seq` = -1")  # noqa: S608

    def begin(self, session: DbSession) -> None:
        """Keep other relays out where rows cannot be locked one by one."""
        if not self._words.mysql:
            session.execute(self._take_turns)

    def take(self, session: DbSession, *, count: int) -> list[Letter]:
        """Lock due rows without a key and return them."""
        return [_letter(row) for row in session.fetch_all(self._take, {"target": self._target, "count": count})]

    def scan(self, session: DbSession, *, after: Position | None, count: int) -> tuple[list[Seen], float]:
        """Return due rows with a key behind a position, and the age in seconds of the first."""
        binds: dict[str, Any] = {"target": self._target, "count": count}
        if after is None:
            rows = session.fetch_all(self._scan, binds)
        else:
            rows = session.fetch_all(self._scan_on, {**binds, "at": after[0], "after": after[1]})
        age_s = max(0.0, rows[0]["age"] / 1e6) if rows else 0.0
        return [Seen(row["seq"], bytes(row["k"])) for row in rows], age_s

    def position_of(self, session: DbSession, seq: int) -> Position | None:
        """Return where a scan that ended with this row goes on; None if it is gone."""
        due_at = session.execute_scalar(self._place, {"seq": seq})
        return None if due_at is None else (due_at, seq)

    def lock(self, session: DbSession, seqs: Sequence[int]) -> dict[int, bytes]:
        """Lock rows and return the keys of those that were free, alive, due and the oldest of their keys."""
        return {row["seq"]: bytes(row["k"]) for row in session.fetch_all(self._lock, {"seqs": seqs})}

    def oldest(self, session: DbSession, keys: Sequence[bytes], *, last: int, count: int) -> list[Letter]:
        """Return the oldest live rows of keys, due or not, up to the row ``last``: of each key without a gap.

        The first one of a key is its oldest live row at this moment.
        """
        binds = {"target": self._target, "keys": keys, "last": last, "count": count}
        return [_letter(row) for row in session.fetch_all(self._oldest, binds)]

    def settle(
        self, session: DbSession, *, published: Sequence[int], refused: Iterable[tuple[Retry | Park, str]]
    ) -> None:
        """Write down what became of the letters."""
        if published:
            session.execute(self._delete, {"seqs": json.dumps(published)})
        for decision, reason in refused:
            binds: dict[str, Any] = {"seq": decision.seq, "n": decision.attempts, "reason": reason.encode()[:255]}
            if isinstance(decision, Retry):
                session.execute(self._retry, {**binds, "later": self._words.microseconds(decision.delay_s)})
            else:
                session.execute(self._park, binds)


def _with_list(statement: str, name: str = "seqs") -> TextClause:
    return text(statement).bindparams(bindparam(name, expanding=True))


def _letter(row: dict[str, Any]) -> Letter:
    key = row["k"]
    return Letter(
        row["seq"],
        bytes(row["id"]).decode(),
        None if key is None else bytes(key),
        bytes(row["payload"]),
        row["n"],
        max(0.0, row["age"] / 1e6),
        bool(row.get("due", True)),
    )
