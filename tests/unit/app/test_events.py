"""Known events, the check for typos, and versions of payloads."""

from dataclasses import dataclass
from typing import Any

import pytest

from conquiet.app.events import Events
from conquiet.errors import ConfigurationError, PayloadError


@dataclass
class OrderPaid:
    order_id: str
    cents: int
    currency: str = "EUR"


def test_a_typo_in_an_event_name_is_refused_with_the_right_name() -> None:
    events = Events()
    events.add("order.paid", OrderPaid)

    with pytest.raises(ConfigurationError, match=r"'order.payd' is not known.*did you mean 'order.paid'\?"):
        events.find("order.payd")


def test_an_unknown_event_without_a_similar_name_names_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match=r"'mail' is not known to this app: If another.*app.declare\('mail'"):
        Events().find("mail")


def test_something_that_is_no_text_is_no_event() -> None:
    with pytest.raises(ConfigurationError, match="named by a text, got a int"):
        Events().find(3)


def test_an_event_is_declared_once() -> None:
    events = Events()
    events.add("order.paid", OrderPaid)

    with pytest.raises(ConfigurationError, match=r"'order.paid' is declared already"):
        events.add("order.paid", dict)


def test_an_event_without_upgrades_carries_no_version() -> None:
    event = Events().add("order.paid", OrderPaid)

    assert event.encode(OrderPaid("a", 5)) == {"order_id": "a", "cents": 5, "currency": "EUR"}


def versioned() -> Events:
    events = Events()

    def cents_instead_of_euros(old: dict[str, Any]) -> dict[str, Any]:
        return {"order_id": old["order_id"], "cents": old["euros"] * 100}

    def with_currency(old: dict[str, Any]) -> dict[str, Any]:
        return {**old, "currency": "CHF"}

    events.add_upgrade("order.paid", 1, cents_instead_of_euros)
    events.add("order.paid", OrderPaid)
    events.add_upgrade("order.paid", 2, with_currency)
    return events


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"order_id": "a", "euros": 5}, OrderPaid("a", 500, "CHF")),
        ({"order_id": "a", "euros": 5, "_version": 1}, OrderPaid("a", 500, "CHF")),
        ({"order_id": "a", "cents": 5, "_version": 2}, OrderPaid("a", 5, "CHF")),
        ({"order_id": "a", "cents": 5, "_version": 3}, OrderPaid("a", 5, "EUR")),
    ],
)
def test_old_payloads_are_upgraded_step_by_step(data: dict[str, Any], expected: OrderPaid) -> None:
    assert versioned().find("order.paid").decode(data) == expected


def test_a_versioned_event_is_emitted_with_its_version_and_read_back() -> None:
    event = versioned().find("order.paid")

    data = event.encode(OrderPaid("a", 5))

    assert data["_version"] == 3
    assert event.decode(data) == OrderPaid("a", 5)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"order_id": "a", "_version": 4}, "newer than this process knows"),
        ({"order_id": "a", "_version": "2"}, "is not a version number"),
        ({"order_id": "a", "_version": 0}, "is not a version number"),
        ({"order_id": "secret"}, "cannot be upgraded from 1: KeyError"),
    ],
)
def test_a_version_that_cannot_be_read_is_refused_without_its_values(data: dict[str, Any], reason: str) -> None:
    with pytest.raises(PayloadError, match=reason) as refused:
        versioned().find("order.paid").decode(data)

    assert "secret" not in str(refused.value)


def test_a_missing_upgrade_between_two_versions_is_refused() -> None:
    events = Events()
    events.add("order.paid", OrderPaid)
    events.add_upgrade("order.paid", 2, lambda old: old)

    with pytest.raises(ConfigurationError, match=r"no upgrade of version 1: add @app.upgrade\('order.paid', 1\)"):
        events.require_complete()


def test_an_upgrade_of_an_unknown_event_is_refused() -> None:
    events = versioned()
    events.add_upgrade("order.payd", 1, lambda old: old)

    with pytest.raises(ConfigurationError, match=r"did you mean 'order.paid'\?"):
        events.require_complete()


def test_an_upgrade_is_a_plain_function_and_given_once() -> None:
    events = versioned()

    async def later(old: dict[str, Any]) -> dict[str, Any]:
        return old

    with pytest.raises(ConfigurationError, match="an upgrade must be a plain function"):
        events.add_upgrade("order.paid", 3, later)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="has an upgrade of version 1 already"):
        events.add_upgrade("order.paid", 1, lambda old: old)
