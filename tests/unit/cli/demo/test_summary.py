"""The result of the demo."""

from typing import Any

import pytest

from conquiet.cli.demo.summary import Summary


def a_summary(**changed: Any) -> Summary:
    facts: dict[str, Any] = {
        "enqueued": 10, "processed": 10, "repeated": 0, "deliveries": 11, "duplicates": 1, "recovered": 3, "kills": 1,
        "restarts": 0, "unsettled": 0, "money_expected": {1: 5, 2: 7}, "money_found": {1: 5, 2: 7}, "seconds": 2.0,
    }  # fmt: skip
    return Summary(**(facts | changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"processed": 9},
        {"repeated": 1},
        {"unsettled": 1},
        {"money_found": {1: 6, 2: 6}},
        {"money_found": {1: 5}},
        {"processed": 11},
    ],
)
def test_a_summary_balances_only_if_everything_is_in_place(changed: dict[str, Any]) -> None:
    """The total is right even if money moved between the wrong accounts, so each account is checked."""
    assert a_summary().balanced
    assert not a_summary(**changed).balanced
