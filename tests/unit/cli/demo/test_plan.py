"""The orders of the demo."""

import pytest

from conquiet.cli.demo.plan import OPENING_CENTS, DemoPlan
from conquiet.errors import ConfigurationError


def test_the_same_seed_makes_the_same_orders_and_money_is_conserved() -> None:
    plan = DemoPlan(orders=500)

    balances = plan.balances()

    assert list(plan.payloads()) == list(DemoPlan(orders=500).payloads())
    assert sum(balances.values()) == OPENING_CENTS * len(balances)
    assert set(balances.values()) != {OPENING_CENTS}
    with pytest.raises(ConfigurationError):
        DemoPlan(orders=0)
