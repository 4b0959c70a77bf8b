"""Generate the orders of the demo and the expected balances. Pure: the same seed gives the same orders."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from conquiet.core.validation import require_positive

ACCOUNTS = 8
OPENING_CENTS = 1_000_000
_MOST_CENTS = 9_999
_HELD_BACK = 100


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Orders, workers and faults of one demo.

    Attributes:
        orders: Messages to enqueue. Each moves money from one account to another.
        workers: Processes that share them.
        chaos: Kill every worker one after the other, and the private Redis too, instead of one worker once.
        seed: Seed of the generated orders.
    """

    orders: int = 10_000
    workers: int = 4
    chaos: bool = False
    seed: int = field(default=20261115, kw_only=True)

    def __post_init__(self) -> None:
        require_positive("orders", self.orders)
        require_positive("workers", self.workers)

    @property
    def held_back(self) -> int:
        """Orders that are held back until all faults are injected: one in a hundred, at least one.

        The work therefore cannot end before the kill, even if the orchestrator is slow.
        """
        return max(1, self.orders // _HELD_BACK)

    def payloads(self) -> Iterator[dict[str, Any]]:
        """Yield the orders, one by one."""
        rand = random.Random(self.seed)  # noqa: S311 - demo data, not a secret
        for number in range(1, self.orders + 1):
            payer, payee = rand.sample(range(1, ACCOUNTS + 1), 2)
            yield {"order": number, "payer": payer, "payee": payee, "cents": rand.randint(1, _MOST_CENTS)}

    def balances(self) -> dict[int, int]:
        """Return each account's balance after exactly one execution of every order."""
        expected = dict.fromkeys(range(1, ACCOUNTS + 1), OPENING_CENTS)
        for order in self.payloads():
            move(expected, order)
        return expected


def move(balances: dict[int, int], order: Mapping[str, Any]) -> None:
    """Apply one order to plain numbers."""
    balances[order["payer"]] -= order["cents"]
    balances[order["payee"]] += order["cents"]
