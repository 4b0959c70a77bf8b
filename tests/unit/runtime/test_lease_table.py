"""Leases that are extended."""

from tests.unit.runtime.messages import a_message

from conquiet.runtime.lease_table import LeaseTable, due, expired
from conquiet.runtime.message import HandlerState, Ownership
from conquiet.runtime.settings import RuntimeSettings


def test_fresh_lost_acknowledged_and_overlong_leases_are_not_extended() -> None:
    settings = RuntimeSettings(claim_idle_ms=30_000, max_lease_s=100)
    old = a_message("1-0", leased_at=0.0)
    messages = [
        old,
        a_message("2-0", leased_at=8.0),
        a_message("3-0", ownership=Ownership.LOST),
        a_message("4-0", ownership=Ownership.ACKNOWLEDGED),
        a_message("5-0", started_at=0.001, progress=HandlerState.RUNNING),
    ]
    assert due(messages[:4], 10.0, settings) == [old]
    assert due([messages[4]], 200.0, settings) == []
    assert expired(messages, 200.0, settings) == [messages[4]]
    messages[4].progress = HandlerState.SUCCEEDED
    assert expired(messages, 200.0, settings) == []


def test_the_table_holds_releases_and_copies() -> None:
    table = LeaseTable(["s", "t"])
    first, second = a_message("1-0"), a_message("1-0", "t")
    table.add([first, second])
    copied = table.snapshot()
    table.release(first)
    table.release(first)

    assert copied == [first, second]
    assert len(table) == 1
    assert table.of("t") == {"1-0": second}


def test_releasing_an_earlier_delivery_leaves_the_later_one_held() -> None:
    """If the lease were released by the id, an entry that was delivered again would run without a lease."""
    table = LeaseTable(["s"])
    earlier, later = a_message("1-0"), a_message("1-0")
    table.add([earlier])
    table.add([later])

    table.release(earlier)

    assert [message is later for message in table.snapshot()] == [True]
