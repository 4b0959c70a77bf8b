"""Pauses of ``run(recover=True)`` while a server that the handler needs is unavailable."""

import logging

import pytest

from conquiet.config import QueueConfig
from conquiet.errors import DatabaseUnavailableError
from conquiet.queue.outage import Outage


def test_a_pause_ends_before_others_may_claim_the_message() -> None:
    """Three pauses fit into the claim time: the message is extended after each of them."""
    outage = Outage(QueueConfig("orders", "billing", "me", claim_idle_ms=3_000))

    pauses_s = [outage.failed(DatabaseUnavailableError("away"), "1-0") for _ in range(12)]

    assert pauses_s == sorted(pauses_s)
    assert pauses_s[:2] == [0.1, 0.2]
    assert pauses_s[-1] == 1.0


def test_a_pause_is_never_longer_than_ten_seconds() -> None:
    outage = Outage(QueueConfig("orders", "billing", "me", claim_idle_ms=3_600_000))

    assert max(outage.failed(DatabaseUnavailableError("away"), "1-0") for _ in range(40)) == 10.0


def test_the_next_outage_begins_with_a_short_pause_and_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outage = Outage(QueueConfig("orders", "billing", "me"))
    for _ in range(3):
        outage.failed(DatabaseUnavailableError("away"), "1-0")

    outage.over()
    was_on = outage.is_on
    pause_s = outage.failed(DatabaseUnavailableError("away"), "2-0")

    assert not was_on
    assert pause_s == 0.1
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
