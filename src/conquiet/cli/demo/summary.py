"""The result: compare the enqueued orders with the database. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Summary:
    """The facts, counted in Redis and in the database after the last worker has ended.

    Attributes:
        enqueued: Entries in the stream.
        processed: Different orders with a row in the database.
        repeated: Additional rows of an order: its effect happened again.
        deliveries: Deliveries that a worker committed.
        duplicates: Deliveries without effect, because the message was processed already.
        recovered: Messages claimed from a worker that was killed.
        kills: Workers ended with SIGKILL.
        restarts: Times the private Redis was killed and restarted.
        unsettled: Entries still pending or not yet delivered.
        money_expected: Balance of each account if every order is executed exactly once.
        money_found: Balance of each account in the database.
        seconds: From the first read to the last acknowledgement.
    """

    enqueued: int
    processed: int
    repeated: int
    deliveries: int
    duplicates: int
    recovered: int
    kills: int
    restarts: int
    unsettled: int
    money_expected: Mapping[int, int]
    money_found: Mapping[int, int]
    seconds: float

    @property
    def lost(self) -> int:
        """Enqueued orders without a row."""
        return self.enqueued - self.processed

    @property
    def wrong_accounts(self) -> int:
        """Accounts with a balance that differs from exactly one execution of each order."""
        return sum(self.money_found.get(account) != cents for account, cents in self.money_expected.items())

    @property
    def total_cents(self) -> int:
        """Sum of all balances."""
        return sum(self.money_found.values())

    @property
    def balanced(self) -> bool:
        """True if no order is lost, unsettled or repeated, and all balances are as expected."""
        return self.lost == 0 and self.repeated == 0 and self.unsettled == 0 and self.wrong_accounts == 0

    def as_json(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        facts = asdict(self)
        del facts["money_expected"], facts["money_found"]
        return facts | {
            "seconds": round(self.seconds, 3),
            "lost": self.lost,
            "wrong_accounts": self.wrong_accounts,
            "total_cents": self.total_cents,
            "balanced": self.balanced,
        }

    def lines(self) -> list[tuple[str, str]]:
        """Return the summary as pairs of label and value."""
        accounts = len(self.money_expected)
        moved = (
            f"every cent in place: {self.total_cents / 100:,.2f} on {accounts} accounts"
            if self.wrong_accounts == 0
            else f"{self.wrong_accounts} of {accounts} accounts are wrong"
        )
        restarts = f", Redis killed and restarted {self.restarts} times" if self.restarts else ""
        return [
            ("enqueued", f"{self.enqueued:,}"),
            ("processed", f"{self.processed:,}"),
            ("workers killed (-9)", f"{self.kills}{restarts}"),
            ("recovered from the killed", f"{self.recovered:,}"),
            ("duplicates skipped", f"{self.duplicates:,}"),
            ("still unsettled", f"{self.unsettled:,}"),
            ("lost", f"{self.lost:,}"),
            ("done twice", f"{self.repeated:,}"),
            ("money", moved),
        ]
