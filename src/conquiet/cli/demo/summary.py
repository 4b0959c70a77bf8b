"""The result: what was enqueued, what is in the database, and whether the two agree. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Summary:
    """The facts, counted in Redis and in the database after the last worker has ended.

    Attributes:
        enqueued: Entries in the stream.
        processed: Different orders that have a row in the database.
        repeated: Further rows of an order that has one: its effect happened again.
        deliveries: How often a worker got a message and committed.
        duplicates: Deliveries that found the message done already and did nothing.
        recovered: Messages claimed from a worker that was killed.
        kills: Workers ended with SIGKILL.
        restarts: Times the private Redis was killed and restarted.
        unsettled: Entries still pending or not yet delivered.
        money_expected: Balance of each account if every order is carried out exactly once.
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
        """Orders that were enqueued and have no row."""
        return self.enqueued - self.processed

    @property
    def wrong_accounts(self) -> int:
        """Accounts whose balance is not what exactly one run of each order makes it."""
        return sum(self.money_found.get(account) != cents for account, cents in self.money_expected.items())

    @property
    def total_cents(self) -> int:
        """All the money there is."""
        return sum(self.money_found.values())

    @property
    def balanced(self) -> bool:
        """Nothing lost, nothing left over, every cent where it belongs."""
        return self.lost == 0 and self.repeated == 0 and self.unsettled == 0 and self.wrong_accounts == 0

    def as_json(self) -> dict[str, Any]:
        """Return the summary for machines."""
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
        """Return the summary for people: what, and how much."""
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
